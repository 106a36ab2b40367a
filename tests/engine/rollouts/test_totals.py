"""Lines about several rollouts, in an engine's log."""

import pytest

from das.engine.rollouts.totals import LinesInTheLog


def test_a_line_after_the_first_rollout_and_for_every_fifty_more(caplog: pytest.LogCaptureFixture) -> None:
    lines = LinesInTheLog()
    for rollout in range(151):
        lines.add({"passes": 10 + rollout, "drafted": 10, "accepted": 5})
        lines.add({"passes": 0, "drafted": 0, "accepted": 0})  # no rollout
    first, *others = (record.getMessage() for record in caplog.records)
    assert first == "das: 5 of 10 drafted tokens were accepted (50%); 10 passes in place of 15, 33% saved, in 1 rollout"
    assert len(others) == 3
    assert all(line.startswith("das: 250 of 500 drafted") and line.endswith(", in 50 rollouts") for line in others)
