"""Every code block and every command of the README, of CONTRIBUTING and of the guides runs, or composes."""

import ast
import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
from argparse import ArgumentParser
from itertools import dropwhile
from typing import Any, NamedTuple

import pytest
import trl
import vllm
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from ray.scripts.scripts import start as ray_start
from transformers import HfArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

import das
from das import __main__ as das_command
from das.commands import run
from das.engine.settings import DasOptions
from experiments.run.errors import CONFIGS

ROOT = CONFIGS.parent
LOG = ROOT / "docs" / "log.md"  # dated: what it names may be gone
GUIDES = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md") if page != LOG)
PAGES = ("README.md", "CONTRIBUTING.md", *GUIDES)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# A command within a sentence: variables, a program, and something behind it. A word in capitals stands for any.
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\S*python|make|pip|docker|conda|wandb|ray start|vllm serve|launch/\w+\.sh) ")
KNOWN = {"das": das, "GRPOConfig": trl.GRPOConfig, "GRPOTrainer": trl.GRPOTrainer, "LLM": vllm.LLM}


class Block(NamedTuple):
    """A code block: its language, its code, and the line on which the code begins."""

    language: str
    code: str
    line: int


def read_blocks(page: str) -> list[Block]:
    """The code blocks of a page."""
    parts = re.split(
        r"^```(\w*)$\n?", (ROOT / page).read_text(), flags=re.MULTILINE
    )  # text, language, code, "", text ...
    found, line = [], 1
    for before, language, code, _ in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=False):
        line += before.count("\n") + 1
        found.append(Block(language, code, line))
        line += code.count("\n") + 1
    return found


def blocks(*languages: str) -> list[Any]:
    """The code in these languages, each with its page and line as id."""
    return [
        pytest.param(block.code, id=f"{page}:{block.line}")
        for page in PAGES
        for block in read_blocks(page)
        if block.language in languages
    ]


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        assert {block.language for block in read_blocks(page)} <= {"python", "sh", "yaml", "toml", "text", "diff"}, page


def is_program(code: str) -> bool:
    """A block that takes a model from its command line is a program; others are parts of one."""
    return "sys.argv" in code


# tests/test_wheel.py runs the first, tests/test_examples.py the second.
PROGRAMS = [block for block in blocks("python") if is_program(block.values[0])]


def test_the_readme_and_the_vllm_guide_have_a_program() -> None:
    assert [str(program.id).split(":")[0] for program in PROGRAMS] == ["README.md", "docs/vllm.md"]


@pytest.mark.parametrize("code", [block for block in blocks("python") if not is_program(block.values[0])])
def test_a_part_of_a_program_has_arguments_that_exist(code: str) -> None:
    """Calls of das, TRL and vLLM bind to their signatures; das builds the engine's arguments that a page shows."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        name, _, method = ast.unparse(call.func).partition(".")
        if name not in KNOWN:
            continue
        function = getattr(KNOWN[name], method) if method else KNOWN[name]
        keywords = {word.arg for word in call.keywords if word.arg is not None}
        parameters = inspect.signature(function).parameters
        further = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        assert further or keywords <= parameters.keys(), ast.unparse(call)
        if function is das.engine_arguments and ":" not in ast.unparse(call):
            function(*map(ast.literal_eval, call.args), **{w.arg: ast.literal_eval(w.value) for w in call.keywords})
        checked += 1
    assert checked


def lines() -> list[Any]:
    """Every command of shell blocks and sentences. Those of run.py are in test_docs.py."""
    found = []
    for block in blocks("sh"):
        code = block.values[0].replace("\\\n", " ")
        commands = [line for line in code.splitlines() if line.strip() and " run.py" not in line]
        found += [pytest.param(line, id=f"{block.id} {line[:40]}") for line in commands]
    for page in PAGES:
        spans = re.findall(r"`([^`]+)`", FENCED.sub("", (ROOT / page).read_text()).replace("\n", " "))
        commands = sorted({span for span in spans if COMMAND.match(span) and " run.py" not in span})
        found += [pytest.param(line, id=f"{page} {line[:40]}") for line in commands if "..." not in line]
    return found


def check_launch(words: list[str]) -> None:
    """accelerate's own parser takes a launch, its config names FSDP 2, and TRL's config or the script the arguments."""
    given = launch_command_parser().parse_args(words[2:])
    if given.config_file is not None:
        launched = load_config_from_file(str(ROOT / given.config_file))
        assert launched.fsdp_config["fsdp_version"] == 2
    own: set[str] = set()
    if "/" in given.training_script:
        own = set(re.findall(r'add_argument\(\s*"(--\w+)"', (ROOT / given.training_script).read_text()))
    options = re.split(r" (?=--)", " ".join(["", *given.training_script_args]))
    of_trl = [option for option in options if option.split(" ")[0] not in own]
    HfArgumentParser(trl.GRPOConfig).parse_args(" ".join(of_trl).split())


@pytest.mark.parametrize("line", lines())
def test_a_command_composes(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if found := re.search(r"PYTHONPATH=(\w+)", line):
        monkeypatch.syspath_prepend(ROOT / found[1])
    words = list(dropwhile(lambda word: "=" in word, shlex.split(line, comments=True)))  # variables come first
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
        assert all((ROOT / test).exists() for test in re.findall(r"tests/[\w/.]+", line))
    elif words[:2] == ["vllm", "serve"] or words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        options = words[2:] if words[0] == "vllm" else words[3:]
        of_server = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
        assert das.engine_arguments(**of_server.speculative_config)
    elif words[1:4] == ["-m", "das", "run"]:
        parser = ArgumentParser()
        run.add_arguments(parser)
        given = parser.parse_args(words[4:])
        assert run.options(given.method, given.set)
        if "accelerate" in given.words:
            check_launch(given.words[given.words.index("accelerate") :])
    elif words[1:4] == ["-m", "das", "doctor"]:
        monkeypatch.setattr(sys, "argv", words[2:])
        monkeypatch.setattr(das_command, "examine", lambda *asked: [])
        assert das_command.main() in (0, 1)
    elif words[1:2] == ["-m"]:
        assert importlib.util.find_spec(words[2])
    elif words[0] == "accelerate":
        check_launch(words)
    elif words[:2] == ["ray", "start"]:
        ray_start.make_context("ray start", words[2:])
    elif words[0].endswith("python") or words[0] in ("pip", "conda"):
        files = [word for word in words if word.endswith((".py", ".txt", ".yml")) and ("/" in word or word[-1] == "l")]
        assert all((ROOT / file).exists() for file in files)
    elif words[0] == "docker":
        assert f" AS {words[words.index('--target') + 1]}\n" in (ROOT / "Dockerfile").read_text()
    elif words[0].startswith("launch/"):
        assert (ROOT / words[0]).exists()
    else:
        assert words[0] in ("git", "cd", "wandb", "export"), line


RECIPE = pytest.param((ROOT / "examples" / "verl" / "recipes" / "das.yaml").read_text(), id="examples/verl")


@pytest.mark.parametrize("code", [*blocks("yaml", "toml"), RECIPE])
def test_a_framework_gets_the_arguments_of_an_engine(code: str) -> None:
    """What a page writes into another framework's config are the arguments that das builds."""
    settings = tomllib.loads(code) if code.startswith("[") else yaml.safe_load(code)
    found: dict[str, Any] = {}

    def look(node: Any) -> None:
        if isinstance(node, dict):
            found.update({key: node[key] for key in node if key in das.engine_arguments()})
            for child in node.values():
                look(child)

    look(settings)
    expected = das.engine_arguments()
    assert found["worker_cls"] == expected["worker_cls"]
    assert found["speculative_config"] == expected["speculative_config"]
    assert found["logprobs_mode"] == expected["logprobs_mode"]
    assert DasOptions(**found["additional_config"]["das"])
