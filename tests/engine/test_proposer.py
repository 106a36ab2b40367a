"""The proposer without an engine: which passes it need not read, and which it must."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from das.budget import TargetPass
from das.drafter import Drafts
from das.engine import learned
from das.engine.engine_config import WORKER
from das.engine.proposer import DasProposer
from das.verify.admission import LIMIT_KEY


class Batch:
    """vLLM's side: requests by name, all in the batch."""

    passes_ended: Sequence[float] = ()

    def __init__(self, max_model_len: int = 100) -> None:
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(worker_cls=WORKER),
            additional_config={"das": {"drafter": {"remember": "tokens"}}},  # it has no sampler
            compilation_config=SimpleNamespace(max_cudagraph_capture_size=None),
            speculative_config=SimpleNamespace(num_speculative_tokens=8),
            model_config=SimpleNamespace(max_model_len=max_model_len, get_vocab_size=lambda: 10),
        )
        self.requests: dict[str, Any] = {}
        self.proposer = DasProposer(config)
        self.proposer.attach(self)

    @property
    def input_batch(self) -> Any:
        return SimpleNamespace(req_ids=list(self.requests))

    def add(self, name: str, limit: int | None) -> None:
        self.requests[name] = SimpleNamespace(
            sampling_params=self.parameters(limit),
            prompt_token_ids=[1, 2, 3],
            num_prompt_tokens=3,
            output_token_ids=[7],
        )

    @staticmethod
    def parameters(limit: int | None) -> Any:
        extra = {} if limit is None else {LIMIT_KEY: limit}
        return SimpleNamespace(extra_args=extra, max_tokens=50, ignore_eos=True, stop_token_ids=[])

    def propose(self) -> list[list[int]]:
        count = len(self.requests)
        return self.proposer.propose([[7]] * count, np.full(count, 4))


@pytest.fixture
def batch() -> Batch:
    """Two requests that never draft, after their first pass."""
    batch = Batch()
    for name in ("a", "b"):
        batch.add(name, limit=0)
    assert batch.propose() == [[], []]
    return batch


def test_a_pass_of_known_requests_that_never_draft_is_not_read(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch.proposer, "_read_batch", lambda *args: pytest.fail("read"))
    assert batch.propose() == [[], []]


def test_a_request_runs_on_when_an_unannounced_rollout_ends(batch: Batch) -> None:
    """A server's rollouts end between passes: with new weights, or once they are long."""
    batch.add("c", limit=None)
    batch.propose()
    assert batch.proposer.end_unannounced_step() == []
    batch.propose()
    assert batch.proposer.requests.live["c"].generated == 2
    del batch.requests["c"]
    batch.propose()
    assert batch.proposer.draft_round.drafter.history_tokens == 2, "its whole response has joined the history"


def test_a_request_that_drafts_is_noticed_among_them(batch: Batch) -> None:
    batch.add("c", limit=None)
    batch.propose()
    assert not batch.proposer.requests.live["c"].untracked
    batch.propose()
    assert batch.proposer.requests.live["c"].generated == 2
    del batch.requests["c"]
    batch.propose()
    assert set(batch.proposer.requests.live) == {"a", "b"}
    assert batch.proposer.draft_round.drafter.history_tokens == 2, "it has joined the history"


def test_an_id_that_stands_for_another_request_now_is_noticed(batch: Batch) -> None:
    batch.add("a", limit=None)
    batch.propose()
    assert not batch.proposer.requests.live["a"].untracked


def test_requests_that_are_gone_are_forgotten(batch: Batch) -> None:
    batch.requests.clear()
    for number in range(3):
        batch.add(f"new-{number}", limit=0)
        batch.propose()
        del batch.requests[f"new-{number}"]
    assert len(batch.proposer.requests.live) == 1


def test_passes_at_rest_that_are_read_together_count_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two responses ends with its second token, and the asynchronous engine has run it once more."""
    one_by_one, together = Batch(), Batch()
    seen: list[list[TargetPass]] = []
    for batch in (one_by_one, together):
        for name in ("c", "d"):
            batch.add(name, limit=None)
            batch.requests[name].sampling_params.stop_token_ids = [9]
        batch.passes_ended = [1.0]
        batch.propose()
        seen.append([])
        monkeypatch.setattr(batch.proposer.draft_round.budget, "observe_pass", seen[-1].append)
    for i in range(3):
        one_by_one.passes_ended = [1.5 + i]
        one_by_one.proposer.observe([[i], [(8, 9, 1)[i]]])
    together.passes_ended = [1.5, 2.5, 3.5]
    together.proposer.observe([[0, 1, 2], [8, 9, 1]])
    assert len(seen[0]) == 3
    assert [replace(done, context=0) for done in seen[1]] == [replace(done, context=0) for done in seen[0]]
    assert together.proposer.requests.live == one_by_one.proposer.requests.live
    assert [request.passes for request in together.proposer.requests.live.values()] == [4, 3]
    records = [batch.proposer._record for batch in (one_by_one, together)]
    assert records[1].measured_s == records[0].measured_s == [0.5, 1.0, 1.0]
    for batch in (one_by_one, together):
        batch.requests.clear()
        batch.proposer.end_over()
        assert batch.proposer.draft_round.drafter.history_tokens == 7


def test_an_engine_that_resumes_may_take_longer_texts(tmp_path: Path) -> None:
    """What was learned of lengths up to the old limit stays behind, and all else goes on."""
    shorter, longer = Batch(), Batch(max_model_len=200)
    shorter.add("c", limit=None)
    shorter.propose()
    shorter.requests.clear()
    shorter.proposer.end_over()
    learned.save(shorter.proposer, tmp_path)
    learned.load(longer.proposer, tmp_path)
    assert longer.proposer.draft_round.drafter.history_tokens == 1


def test_a_pass_is_planned_from_what_the_budget_chose_in_the_last_rounds(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And drafts are cut and filled up to be as long as planned, where the pass was launched before they were known."""
    drafts = Drafts(np.array([[5, 6, 7, 8]], np.int32), np.ones((1, 4)), np.array([4]))
    batch.add("c", limit=None)
    draft_round = batch.proposer.draft_round
    chosen: list[int] = []
    monkeypatch.setattr(
        draft_round,
        "propose",
        lambda *args: SimpleNamespace(drafts=drafts, counts=[chosen[-1]]) if chosen[-1] else None,
    )

    def round_of(count: int, planned: dict[str, int] | None = None) -> list[int]:
        chosen.append(count)
        found = batch.proposer.propose([[7]] * 3, np.full(3, 4), planned)
        assert found[:2] == [[], []], "requests that never draft"
        return found[2]

    assert round_of(4) == [5, 6, 7, 8]
    assert batch.proposer.planned_rows() == {"c": 4}
    assert round_of(1, {"a": 0, "b": 0, "c": 2}) == [5, 6], "as many as planned, although the budget wants fewer now"
    assert batch.proposer.planned_rows() == {"c": 3}, "the mean of 4 and 1, rounded up"
    assert round_of(1, {"a": 0, "b": 0, "c": 6}) == [5, 6, 7, 8, 0, 0]
    assert batch.proposer.planned_rows() == {"c": 2}, "the mean of 4, 1 and 1"
    assert round_of(0, {"a": 0, "b": 0, "c": 2}) == [0, 0], "nobody drafts any more, but two rows are verified"
    assert batch.proposer.planned_rows() == {}
    told: list[TargetPass] = []
    monkeypatch.setattr(draft_round.budget, "observe_pass", told.append)
    assert round_of(3) == [5, 6, 7]
    assert [done.num_drafted for done in told] == [2], "the budget hears of rows, not of tokens"
    assert round_of(3, {"a": 0, "b": 0, "c": 0}) == []
    assert not batch.proposer._record.declined, "the pass had no rows, and the budget cut nothing"
