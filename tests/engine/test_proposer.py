"""The proposer without an engine: which passes it need not read, and which it must."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from das.budget import TargetPass
from das.drafter import Drafts
from das.drafter.thread import Late
from das.engine import learned
from das.engine.proposer import DasProposer
from das.engine.requests import Pass, Request, Requests
from das.engine.settings import WORKER
from das.verify.admission import LIMIT_KEY


class Batch:
    """vLLM's side: requests by name, all in the batch."""

    def __init__(self, max_model_len: int = 100) -> None:
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(worker_cls=WORKER),
            additional_config={"das": {"drafter": {"remember": "tokens"}}},  # it has no sampler
            compilation_config=SimpleNamespace(max_cudagraph_capture_size=None, cudagraph_capture_sizes=[]),
            speculative_config=SimpleNamespace(num_speculative_tokens=8),
            model_config=SimpleNamespace(max_model_len=max_model_len, get_vocab_size=lambda: 10),
        )
        self.requests = Requests(8, max_model_len)
        self.proposer = DasProposer(config)

    def add(self, name: str, limit: int | None, stops: Sequence[int] = ()) -> Request:
        """A request with one token; an id that is there already stands for another request now."""
        self.end(name)
        extra = {} if limit is None else {LIMIT_KEY: limit}
        params = SimpleNamespace(
            extra_args=extra, max_tokens=50, ignore_eos=True, stop_token_ids=stops, temperature=1.0, seed=0
        )
        new = SimpleNamespace(
            req_id=name,
            sampling_params=params,
            prompt_token_ids=[1, 2, 3],
            prompt_len=3,
            prefill_token_ids=[1, 2, 3, 7],
        )
        (request,) = self.requests.add(SimpleNamespace(scheduled_new_reqs=[new]))
        return request

    def end(self, *names: str) -> None:
        self.requests.finish(SimpleNamespace(finished_req_ids=names))

    def done(self, tokens: list[list[int]], ended: Sequence[float] = (), drafted: Sequence[int] = ()) -> Pass:
        """A pass, or passes alike, in which each request emitted these tokens."""
        requests = [*self.requests.known.values()]
        counts, ended = list(drafted) or [0] * len(requests), ended or [time.perf_counter()]
        return Pass(requests, tokens, counts, ended)

    def propose(self) -> list[list[int]]:
        return self.proposer.propose(self.done([[7]] * len(self.requests.known)))


@pytest.fixture
def batch() -> Batch:
    """Two requests that never draft, after their first pass."""
    batch = Batch()
    for name in ("a", "b"):
        batch.add(name, limit=0)
    assert batch.propose() == [[], []]
    return batch


def test_an_id_that_stands_for_another_request_now_is_noticed(batch: Batch) -> None:
    request = batch.add("a", limit=None)
    batch.propose()
    assert batch.proposer.live == [request]
    other = batch.add("a", limit=None)
    batch.propose()
    assert batch.proposer.live == [other]
    assert batch.proposer.draft_round.drafter.history_tokens == 1


def test_passes_at_rest_that_are_read_together_count_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two responses ends with its second token, and the asynchronous engine has run it once more."""
    one_by_one, together = Batch(), Batch()
    seen: list[list[TargetPass]] = []
    for batch in (one_by_one, together):
        for name in ("c", "d"):
            batch.add(name, limit=None, stops=[9])
        batch.proposer.propose(batch.done([[7], [7]], [1.0]))
        seen.append([])
        monkeypatch.setattr(batch.proposer.draft_round.budget, "observe_pass", seen[-1].append)
    for i in range(3):
        one_by_one.proposer.observe(one_by_one.done([[i], [(8, 9, 1)[i]]], [1.5 + i]))
    together.proposer.observe(together.done([[0, 1, 2], [8, 9, 1]], [1.5, 2.5, 3.5]))
    assert len(seen[0]) == 3
    assert [replace(done, context=0) for done in seen[1]] == [replace(done, context=0) for done in seen[0]]
    counts = [
        [(request.generated, request.num_accepted, request.stopped) for request in batch.proposer.live]
        for batch in (one_by_one, together)
    ]
    assert counts[1] == counts[0] == [(4, 0, False), (3, 0, True)]
    records = [batch.proposer.record for batch in (one_by_one, together)]
    assert records[1].measured_s == records[0].measured_s == [0.5, 1.0, 1.0]
    for batch in (one_by_one, together):
        batch.end("c", "d")
        batch.proposer.end_over()
        assert batch.proposer.draft_round.drafter.history_tokens == 7


def test_an_engine_that_resumes_may_take_longer_texts(tmp_path: Path) -> None:
    """What was learned of lengths up to the old limit stays behind, and all else goes on."""
    shorter, longer = Batch(), Batch(max_model_len=200)
    shorter.add("c", limit=None)
    shorter.propose()
    shorter.end("c")
    shorter.proposer.end_over()
    learned.save(shorter.proposer, tmp_path)
    learned.load(longer.proposer, tmp_path)
    assert longer.proposer.draft_round.drafter.history_tokens == 1


def test_a_pass_is_planned_from_what_the_budget_chose_in_the_last_rounds(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all that was drafted goes to the device, where the pass was launched before drafts were known."""
    drafts = Drafts(np.array([[5, 6, 7, 8]], np.int32), np.full((1, 4), 0.5), np.array([4]))
    batch.add("c", limit=None)
    draft_round, late = batch.proposer.draft_round, Late(np.zeros((3, 5)), np.zeros((3, 5)), np.zeros(3), np.zeros(1))
    chosen: list[int] = []
    monkeypatch.setattr(
        draft_round,
        "propose",
        lambda *args: SimpleNamespace(drafts=drafts, counts=[chosen[-1]]) if chosen[-1] else None,
    )

    def round_of(count: int, verified: int = 0, is_late: bool = True) -> list[int]:
        chosen.append(count)
        done = batch.done([[7]] * 3, drafted=[0, 0, verified])
        if not is_late:
            found = batch.proposer.propose(done)
            assert found[:2] == [[], []], "requests that never draft"
            return found[2]
        batch.proposer.propose_late(done, len(chosen), late)
        assert late.counts[:2].tolist() == [0, 0]
        return late.tokens[2, : int(late.counts[2])].tolist()

    planned = batch.proposer.rows_ahead
    assert round_of(4, is_late=False) == [5, 6, 7, 8]
    assert planned(1) == 4
    assert round_of(1, 4) == [5, 6, 7, 8], "all of them, although the budget wants fewer: the device chooses"
    assert planned(2) == 5, "for each of two requests the mean of 4 and 1"
    assert round_of(1, 3) == [5, 6, 7, 8]
    assert planned(1) == 2
    assert round_of(0, 2) == []
    assert planned(1) == 0
    told: list[TargetPass] = []
    monkeypatch.setattr(draft_round.budget, "observe_pass", told.append)
    assert round_of(3, 2, is_late=False) == [5, 6, 7]
    assert [done.num_drafted for done in told] == [2], "the budget hears of rows, not of tokens"
    assert not batch.proposer.record.declined
