"""Arms in lock step: who trains beside whom; when an arm dies, at whatever point, one line says so; also of one that
is launched alone.
"""

from multiprocessing import Pipe, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composed import composed_arm

from experiments.compare import run_arms
from experiments.compare.run_arms import expect, tell
from experiments.run.errors import RunFailed


@pytest.mark.parametrize(
    ("last_message", "words"),
    [(None, "arm das was killed"), (("error", "no memory left"), "arm das: no memory left")],
)
def test_a_turn_given_to_a_dead_arm(last_message: tuple[str, str] | None, words: str, tmp_path: Path) -> None:
    ours, theirs = Pipe()
    if last_message:
        theirs.send(last_message)
    theirs.close()
    tell(ours, "go")
    with pytest.raises(RunFailed, match=words):
        expect(ours, "rolled", "das", tmp_path)


@pytest.mark.parametrize("turns", [["none", "das", "suffix"], ["das", "suffix", "none"]])
def test_the_last_in_turn_trains_alone(turns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So another arm must begin each step."""
    config, said = composed_arm("none"), list[str]()
    comparison = run_arms.Comparison(config, dict.fromkeys(("none", "das", "suffix"), config), {}, tmp_path)
    monkeypatch.setattr(run_arms.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(run_arms, "tell", lambda pipe, message: said.append(f"{pipe} goes"))
    monkeypatch.setattr(run_arms, "expect", lambda pipe, kind, name, folder: said.append(f"{name} is done"))
    list(run_arms._train_step({name: name for name in comparison.arms}, turns, comparison))
    first, second, last = turns
    done = [f"{first} is done", f"{second} is done"]
    assert said == [f"{first} goes", f"{second} goes", *done, f"{last} goes", f"{last} is done"]


def test_what_an_arm_does_while_it_starts_is_passed_on(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    for message in (("now", "loads the policy"), ("now", "makes its engine"), ("rollout", None)):
        theirs.send(message)
    said: list[str] = []
    expect(ours, "rollout", "das", tmp_path, said.append)
    assert said == ["das loads the policy", "das makes its engine"]


def test_an_arm_that_fails_after_its_parent_gave_up_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever error it fails with: a pipe with unread messages is reset, not closed, when its other end closes."""
    config = composed_arm("none")
    comparison = run_arms.Comparison(config, {"none": config}, {}, tmp_path)
    for error in (ConnectionResetError(104, "Connection reset by peer"), RuntimeError("the engine raised")):

        def fail(run: Any, raised: Exception = error) -> None:
            raise raised

        monkeypatch.setattr(run_arms, "train_arm", fail)
        ours, theirs = Pipe()
        ours.close()
        arm = get_context("fork").Process(target=run_arms._arm_process, args=("none", comparison, "", 0, theirs))
        arm.start()
        arm.join()
        assert arm.exitcode == 0
    assert capfd.readouterr().err == ""


def test_an_arm_that_is_launched_prints_its_lines_and_its_error_is_that_of_the_comparison(tmp_path: Path) -> None:
    progress: Any = SimpleNamespace(note=(said := list[str]()).append)
    for end, words in (("echo 'error: no memory' >&2; exit 1", "no memory"), ("exit 9", "exit code 9")):
        with pytest.raises(RunFailed, match=rf"^arm das: {words} \(log: "):
            run_arms.train(composed_arm("das"), ["bash", "-c", f"echo step 1; {end}"], tmp_path, progress)
    assert said == ["step 1"] * 2
