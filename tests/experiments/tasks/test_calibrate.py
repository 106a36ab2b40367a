"""task=calibrate: timed passes hold all requests and drafts, and the file that it writes is a latency model."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import Engines
from made_passes import made_passes

from das.budget.fixed import Fixed
from das.budget.latency import LatencyModel
from experiments.harness.pass_timing import RandomDrafter, timed_passes
from experiments.simulate.latency_files import write_latency
from experiments.simulate.latency_forms import Drafting


def test_timed_passes_hold_all_requests_and_all_drafts(engines: Engines, tiny_policy: str) -> None:
    from vllm import SamplingParams

    llm = engines.build(tiny_policy, method="das", max_num_seqs=4, budget={"name": "fixed", "tokens": 6})
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.das_runner
    runner.drafter.draft_round.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    runner.drafter.draft_round.budget = Fixed(3)
    for i in range(4):
        params = SamplingParams(max_tokens=100, ignore_eos=True, seed=i)
        engine.add_request(str(i), {"prompt_token_ids": [5, 6, 7 + i]}, params)
    rows = timed_passes(engine, runner, live=4, drafts=3, count=5)
    assert [row[:2] for row in rows] == [[4, 16]] * 5
    contexts = [row[2] for row in rows]
    assert all(later - earlier >= 4 for earlier, later in pairwise(contexts))
    assert all(row[3] > 0 for row in rows)
    engines.close()


def test_its_file_is_a_latency_model(tmp_path: Path) -> None:
    form = Drafting(base=2e-3, row=1e-4, drafting=5e-4, token=5e-5)
    rows = made_passes(form, 2000, noise=0.02)
    columns = (rows.live, rows.tokens, rows.context, rows.seconds)
    write_latency(tmp_path / "latency.json", np.stack(columns, axis=1).tolist(), "made up")
    model = LatencyModel(measured=str(tmp_path / "latency.json"))
    assert model.predict(10, 20) == pytest.approx(2e-3 + 1e-3 + 5e-4 + 1e-3, rel=0.1)
