"""task=calibrate: timed passes hold all requests and drafts, and the file that it writes is a latency model."""

from itertools import pairwise

import pytest
from conftest import Engines

from das.budget.policies import Fixed
from experiments.measure.calibrate import RandomDrafter, timed_passes


@pytest.mark.slow
def test_timed_passes_hold_all_requests_and_all_drafts(engines: Engines, tiny_policy: str) -> None:
    from vllm import SamplingParams

    llm = engines.build(tiny_policy, method="das", max_num_seqs=4, budget={"name": "fixed", "tokens": 6})
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.das_runner
    runner.flights.drafter.draft_round.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    runner.flights.drafter.draft_round.budget = Fixed(3)
    for i in range(4):
        params = SamplingParams(max_tokens=100, ignore_eos=True, seed=i)
        engine.add_request(str(i), {"prompt_token_ids": [5, 6, 7 + i]}, params)
    rows = timed_passes(engine, runner, live=4, drafts=3, count=5)
    assert [row[:2] for row in rows] == [[4, 16]] * 5
    contexts = [row[2] for row in rows]
    assert all(later - earlier >= 4 for earlier, later in pairwise(contexts))
    assert all(row[3] > 0 for row in rows)
    engines.close()
