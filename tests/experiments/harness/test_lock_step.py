"""An arm that dies, whenever it does, is one line that says so."""

from multiprocessing import Pipe, get_context
from pathlib import Path

import pytest

from experiments.harness import lock_step
from experiments.harness.lock_step import expect, tell
from experiments.run.errors import RunFailed


@pytest.mark.parametrize(
    ("last", "said"), [(None, "arm das was killed"), (("error", "no memory left"), "arm das: no memory left")]
)
def test_a_turn_given_to_a_dead_arm(last: tuple[str, str] | None, said: str, tmp_path: Path) -> None:
    mine, theirs = Pipe()
    if last:
        theirs.send(last)
    theirs.close()
    tell(mine, "go")
    with pytest.raises(RunFailed, match=said):
        expect(mine, "rolled", "das", tmp_path)


def test_an_arm_that_fails_after_its_parent_gave_up_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever it fails of: a pipe with unread words is reset, not just closed, when its other end goes."""
    for error in (ConnectionResetError(104, "Connection reset by peer"), RuntimeError("the engine raised")):

        def fail(*_: object, raised: Exception = error, **__: object) -> None:
            raise raised

        monkeypatch.setattr(lock_step, "train_arm", fail)
        mine, theirs = Pipe()
        mine.close()
        arm = get_context("fork").Process(target=lock_step._arm_process, args=({}, "", tmp_path, "", theirs, 0))
        arm.start()
        arm.join()
        assert arm.exitcode == 0
    assert capfd.readouterr().err == ""
