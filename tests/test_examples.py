"""Every example runs as it is, and so does the program of the guide of vLLM."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripts import TWO_RANKS, Ended, run_script, scripts
from test_guides import PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
FIXED = ROOT / "tests" / "fixed_budget.py"
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # spares engines in processes of their own, which start slowly


def run_example(*arguments: str | Path, **environment: str) -> Ended:
    """Run an example with a budget that reads no clock, in a process that has imported vLLM and TRL before."""
    (ended,) = scripts([str(FIXED.relative_to(ROOT)), *map(str, arguments)], [environment])
    assert ended.code == 0, (ended.out + ended.errors)[-3000:]
    return ended


@pytest.mark.parametrize("example", ["vllm_rollouts", "prompt_lookup"])
def test_an_example_without_a_model_says_what_it_needs(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: one import of vLLM and TRL serves all. A message as exit code goes to stderr, with 1."""
    path = f"examples/{example}.py"
    monkeypatch.setattr(sys, "argv", [path])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    message = stopped.value.code
    assert isinstance(message, str)
    assert message.startswith("say which model")
    assert f"python {path} MODEL" in message


@pytest.mark.slow
def test_vllm_rollouts(tiny_policy: str) -> None:
    drafted = run_example("examples/vllm_rollouts.py", tiny_policy, "das")
    assert sum(line.startswith("[[") for line in drafted.errors.splitlines()) == 4
    steps = [line.split() for line in drafted.out.splitlines() if line.startswith("step")]
    assert sum(int(words[-2]) for words in steps) > 0


TINY = (  # the sizes of a training of two ranks in which eight GPUs would train 8B
    *("--max_completion_length", "24", "--vllm_max_model_length", "128", "--gradient_accumulation_steps", "4"),
    *("--per_device_train_batch_size", "2", "--num_generations", "4", "--max_steps", "3", "--learning_rate", "0.01"),
    *("--use_cpu", "--bf16", "False", "--gradient_checkpointing", "False", "--vllm_enable_sleep_mode", "False"),
    *("--vllm_gpu_memory_utilization", "0.1", "--disable_tqdm", "True"),
    *("--save_strategy", "steps", "--save_steps", "3"),
)
CALCULATIONS = (("what is 3 + 4?", 7), ("what is 12 - 5?", 7), ("add 7 to 15", 22), ("take 2 from 9", 7))


def of_two_ranks(policy: str, data: Path, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the example for eight GPUs on two ranks, and return TRL's logs of its steps."""
    given = ("--model", policy, "--data", data, "--output_dir", out, *TINY, *arguments)
    run_script(*TWO_RANKS, FIXED, "examples/qwen3_8b_dapo.py", *given)
    state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text())
    rows: list[dict[str, Any]] = state["log_history"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    return rows


@pytest.mark.slow
def test_qwen3_8b_dapo(repetitive_policy: str, tmp_path: Path) -> None:
    """Two ranks with an engine each: drafts are accepted, and ranks share what they finished."""
    data = tmp_path / "data"
    data.mkdir()
    head = {"configs": [{"config_name": "all", "data_files": "train.jsonl"}]}
    (data / "README.md").write_text(f"---\n{json.dumps(head)}\n---\n")
    rows = [{"prompt": q, "solution": str(a)} for q, a in CALCULATIONS]
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    das = of_two_ranks(repetitive_policy, data, tmp_path / "das", "--method", "das")
    assert sum(row["das/accepted"] for row in das) > 0
    assert das[-1]["das/exchange_mb"] > 0


@pytest.mark.slow
def test_prompt_lookup(repetitive_policy: str) -> None:
    output = run_example("examples/prompt_lookup.py", repetitive_policy, **ONE_PROCESS).out
    none, drafted, same = re.findall(r"^(?:none:|das:|same).*$", output, re.MULTILINE)
    assert none.endswith("1.00 a pass, 0 drafted")
    assert int(drafted.split()[-2]) > 0
    assert same == "same tokens: True"


@pytest.mark.slow
def test_the_program_of_the_guide(repetitive_policy: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[1].values[0])
    output = run_example(tmp_path / "program.py", repetitive_policy, **ONE_PROCESS).out
    assert "accepted" in output.splitlines()[-1]


def test_own_budget(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/own_budget.py"), run_name="__main__")
    seconds = {}
    for line in capsys.readouterr().out.splitlines():
        name, *words = line.split()
        seconds[name] = [float(word) for word, unit in pairwise(words) if unit == "s,"]
    assert seconds.keys() == {"none", "fixed", "unlimited", "likely_tail"}
    assert all(len(rollouts) == 4 for rollouts in seconds.values())
    assert sum(seconds["likely_tail"]) < min(sum(seconds["none"]), sum(seconds["fixed"]))


@pytest.mark.slow
def test_advise_own_rollouts(tmp_path: Path) -> None:
    output = run_example("examples/advise_own_rollouts.py", f"out={tmp_path}", "task.tokens=20000").out
    assert "Turn it on with arm=das" in output
    (result,) = tmp_path.glob("advise/*/result.json")
    assert json.loads(result.read_text())["arms"]["das"]["tokens_per_pass"] > 1
    assert (result.parent / "advice.html").stat().st_size > 0


def test_no_example_is_left_out() -> None:
    tests: dict[str, Callable[..., None] | Any] = globals()
    examples = ROOT / "examples"
    for example in examples.glob("*.py"):
        assert f"test_{example.stem}" in tests, example
