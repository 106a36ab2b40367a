"""An arm that dies, whenever it does, is one line that says so."""

from multiprocessing import Pipe
from pathlib import Path

import pytest

from experiments.compare import expect, let_go
from experiments.errors import RunFailed


@pytest.mark.parametrize(
    ("last", "said"), [(None, "arm das was killed"), (("error", "no memory left"), "arm das: no memory left")]
)
def test_a_turn_given_to_a_dead_arm(last: tuple[str, str] | None, said: str, tmp_path: Path) -> None:
    mine, theirs = Pipe()
    if last:
        theirs.send(last)
    theirs.close()
    let_go(mine)
    with pytest.raises(RunFailed, match=said):
        expect(mine, "rolled", "das", tmp_path)
