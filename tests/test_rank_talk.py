"""What the main rank does for all, and where each rank writes."""

from pathlib import Path

import pytest
from scripts import TWO_RANKS, run_script

from das.general import ranks
from experiments.run.run_folder import own_folder


@pytest.mark.slow
def test_two_ranks() -> None:
    """What the main rank found, or raised, all get."""
    run_script(*TWO_RANKS, Path(__file__).with_name("rank_talk.py"))


def test_a_single_process_asks_itself() -> None:
    assert ranks.from_main(lambda: 7) == 7
    assert ranks.scatter(["own"]) == "own"
    with pytest.raises(ZeroDivisionError):
        ranks.from_main(lambda: 1 // 0)


def test_each_rank_has_a_part_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_folder(Path("saved")) == Path("saved")
    monkeypatch.setenv("RANK", "2")
    assert own_folder(Path("saved")) == Path("saved/rank2")
