"""`python -m das run -- COMMAND`: a training script with das, without a change of the script.

All processes of the command inherit its environment variables: the folder `start` is first on their module path, so
that they call `das.speculate()` when TRL's trainers are imported, and their engines write totals into a folder. verl
builds its engines by its configuration, so its command gets das's engine arguments as overrides.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from das.cluster.connection import ClusterSettings
from das.commands.start import sitecustomize
from das.engine.rollouts.totals import FOLDER, line, read_totals
from das.engine.versions import installed
from das.general.side_output import side_output

GROUPS = ("drafter", "budget", "engine", "cluster")  # arguments of das.speculate() that are dictionaries
SINGLE = ("lag", "exact")  # those that are not
VERL = "verl.trainer.main_ppo"
VERL_ROLLOUT = "actor_rollout_ref.rollout"
VERL_ENGINE = f"{VERL_ROLLOUT}.engine_kwargs.vllm"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `python -m das run`."""
    parser.add_argument("--method", default="das", help="what drafts (docs/drafters_and_budgets.md; default: das)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of das.speculate(), such as drafter.window=4, lag=1 or exact=bits; may be repeated",
    )
    parser.add_argument("words", nargs=REMAINDER, metavar="-- COMMAND ...", help="the command, after --")


def options(method: str, settings: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of das.speculate(). settings: texts such as "drafter.window=4"; values are JSON, or text.

    Raises ValueError, TypeError or EngineError with a one-line message if they are impossible.
    """
    # These need numpy, and `python -m das doctor` says in one line that it is missing.
    from das.drafter import DEFAULT_UNIT, check_unit
    from das.engine.settings import EngineSettings, find_method
    from das.trl.lag import check_lag

    found: dict[str, Any] = {"method": method}
    for setting in settings:
        name, equals, text = setting.partition("=")
        group, _, key = name.partition(".")
        if not equals or not ((key and group in GROUPS) or name in SINGLE):
            raise ValueError(
                f"--set {setting}: give lag=1, exact=bits, or GROUP.NAME=VALUE with a group of {', '.join(GROUPS)}"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name in SINGLE:
            found[name] = value
        else:
            found.setdefault(group, {})[key] = value
    if not find_method(method).keyed:
        raise ValueError(f"--method {method} is vLLM as it comes: run the command without das")
    of_engine = {name: value for name, value in found.items() if name in ("drafter", "budget", "exact")}
    drafter = of_engine["drafter"] = dict(found.get("drafter", {}))
    check_unit(drafter.pop("unit", DEFAULT_UNIT))
    ClusterSettings(**found.get("cluster", {}))
    check_lag(found.get("lag"))
    EngineSettings(**{"model": "", "method": method, **of_engine, **found.get("engine", {})})
    return found


def command_with_das(words: Sequence[str], chosen: Mapping[str, Any]) -> list[str]:
    """Returns the command to start. chosen: what `options` returned.

    Raises ValueError with a one-line message if the command cannot run with das.
    """
    command = list(words)
    if not command:
        raise ValueError("say what to run: python -m das run -- python train.py")
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]}: no such program; give the command after --, such as -- python train.py")
    return command + (_of_verl(chosen) if VERL in command else [])


def _of_verl(chosen: Mapping[str, Any]) -> list[str]:
    """Returns the overrides with which verl builds engines of das. chosen: what `options` returned."""
    refused = [name for name in ("engine", "cluster", "lag") if name in chosen]
    if refused or "unit" in chosen.get("drafter", {}):
        raise ValueError(f"verl builds its engines itself: leave out --set {', '.join(refused or ['drafter.unit'])}")
    from das.budget import DEFAULT_BUDGET
    from das.engine.build import engine_arguments  # imports torch, which takes seconds

    budget, exact = chosen.get("budget", DEFAULT_BUDGET), chosen.get("exact")
    arguments = engine_arguments(chosen["method"], chosen.get("drafter"), budget, exact=exact)
    own = [f"++{VERL_ROLLOUT}.logprobs_mode={arguments.pop('logprobs_mode')}"]  # an option of verl's own
    arguments["no_async_scheduling"] = not arguments.pop("async_scheduling")  # some versions pass no false values on
    # None is written, too: it takes back the speculative_config of a recipe (examples/verl).
    return own + [f"++{VERL_ENGINE}.{name}={_hydra(value)}" for name, value in arguments.items()]


def _hydra(value: Any) -> str:
    """Returns a value in the grammar of Hydra's overrides, where keys of dictionaries are not quoted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return json.dumps(value)


def environment(exact: str | None) -> dict[str, str]:
    """Returns the environment variables of verl's engines; for TRL das.speculate() sets them. exact: see
    EngineSettings."""
    from das.engine.install import INVARIANT  # imports torch, which takes seconds

    # The CUDA build: its own kernels give a row other bits in other batches.
    return {"VLLM_NO_USAGE_STATS": "1"} | (INVARIANT if exact == "bits" and installed("vllm") else {})


def run(arguments: Namespace) -> int:
    """Run the command, and say at its end what the drafts saved. Returns its exit code; 2 if it is refused."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    try:
        chosen = options(arguments.method, arguments.set)
        command = command_with_das(words, chosen)
    except (ValueError, TypeError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = [str(Path(sitecustomize.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {sitecustomize.OPTIONS: json.dumps(chosen), "PYTHONPATH": os.pathsep.join(path)}
    folder = None
    with side_output("the folder for the sum at the end (TMPDIR)", _say):
        variables[FOLDER] = folder = tempfile.mkdtemp(prefix="das_run_")
    defaults = environment(chosen.get("exact")) if VERL in command else {}
    try:
        process = subprocess.Popen(command, env={**defaults, **os.environ, **variables})
    except OSError as error:  # such as a script whose first line names no interpreter
        print(f"error: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command, too
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    code = process.wait()
    if folder is not None:
        with side_output("the sum of all rollouts", _say):
            _say(summary(read_totals(Path(folder)), VERL in command))
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _say(line: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        print(line if line.startswith("das: ") else f"das: {line}", file=sys.stderr, flush=True)


def summary(totals: Mapping[str, int], verl: bool = False) -> str:
    """Returns one line about all rollouts of a run: what was accepted and saved, or why nothing. totals: of
    `read_totals`. What processes save that go on in the background is in no sum."""
    if totals["rollouts"]:
        return line(totals)
    if verl:
        return "das: no rollout of verl ended here; with a Ray that ran before, its workers did not inherit das"
    return (
        "das: no engine rolled out with das until the command ended; it needs a trainer of TRL with use_vllm=True "
        f"(docs/trl.md), or python -m {VERL} as the command itself; python -I, -E and -S hide das"
    )
