"""vLLM as it comes, in a process that das.install() did not prepare: nothing of das in it, and it can be measured."""

import json
from types import SimpleNamespace

import pytest
from scripts import run_script

from das.engine.build import engine_arguments
from das.engine.settings import EngineSettings
from das.general.errors import EngineError
from experiments.training.engines import StepClock, build_stock

ENGINE = """
import json, os, sys
from experiments.run.environment import set_environment
for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_BATCH_INVARIANT"):
    os.environ.pop(name, None)
set_environment()
from das.engine.settings import EngineSettings
from das.engine.rollouts.rollout import RolloutRequest
from experiments.run.run_folder import rollout_row
from experiments.training.engines import build_stock, roll_out_stock
settings = EngineSettings(sys.argv[1], method="stock", dtype="float32", max_model_len=128, max_num_seqs=2)
llm = build_stock(settings)
from vllm import SamplingParams
class Lengths(RolloutRequest):
    def parameters(self):
        parameters = super().parameters()
        for length, params in zip((5, 9, 7), parameters):
            params.max_tokens = length
        return parameters
shared = SamplingParams(temperature=1.0, ignore_eos=True)
request = Lengths([{"prompt_token_ids": [5, 6]}] * 3, shared, ["p"] * 3, [1] * 3, step=1, next_history_tick=1)
rollout = roll_out_stock(llm, request)[1]
again = roll_out_stock(llm, request)[1]
worker = llm.llm_engine.model_executor.driver_worker.worker
core = llm.llm_engine.engine_core.engine_core
print(json.dumps({
    "environment": {k: v for k, v in os.environ.items() if k.startswith("VLLM_")},
    "worker": type(worker).__module__,
    "hooks": [name for name in vars(worker.model_runner) if name == "_sample"],
    "das": hasattr(worker, "das_runner"),
    "layers": [n for n, m in worker.model_runner.model.named_modules() if hasattr(m, "das_repack")],
    "row": rollout_row(rollout),
    "lengths": list(map(len, rollout.responses)),
    "other": rollout.responses != again.responses,
    "live": rollout.report.step_live,
    "ended": [each.last_s for each in rollout.finished],
    "rollout_s": rollout.rollout_s,
}))
"""


@pytest.fixture(scope="module")
def stock(tiny_policy: str) -> dict:  # type: ignore[type-arg]
    found: dict = json.loads(run_script("-c", ENGINE, tiny_policy).splitlines()[-1])  # type: ignore[type-arg]
    return found


def test_nothing_of_das_is_in_the_engine(stock: dict) -> None:  # type: ignore[type-arg]
    assert {"VLLM_USE_V2_MODEL_RUNNER", "VLLM_BATCH_INVARIANT"}.isdisjoint(stock["environment"])
    assert stock["worker"].startswith("vllm.")
    assert stock["hooks"] == stock["layers"] == []
    assert not stock["das"]


def test_it_is_measured_from_outside(stock: dict) -> None:  # type: ignore[type-arg]
    assert stock["lengths"] == [5, 9, 7]
    assert stock["other"], "requests have no seeds"
    row = stock["row"]
    assert (row["tokens"], row["passes"], row["drafted"], row["tokens_per_pass"]) == (21, 21, 0, 1.0)
    assert row["decode_steps"] == len(stock["live"]) == 12  # two seats: 5 passes, then the third request joins
    assert stock["live"] == [2] * 9 + [1] * 3
    first, second, third = stock["ended"]
    assert 0 < first < second < third <= stock["rollout_s"]


def test_vllms_own_drafts_are_counted() -> None:
    states = {"a-1": SimpleNamespace(external_req_id="a"), "b-1": SimpleNamespace(external_req_id="b")}
    engine, clock = SimpleNamespace(output_processor=SimpleNamespace(request_states=states)), StepClock()
    for tokens in ({"a-1": [5], "b-1": []}, {"a-1": [6, 7, 8], "b-1": [5]}, {"a-1": [9], "ended-1": [7]}):
        made = [SimpleNamespace(request_id=name, new_token_ids=new) for name, new in tokens.items()]
        drafts = SimpleNamespace(spec_decoding_stats=SimpleNamespace(num_draft_tokens=4))
        clock.read(engine, SimpleNamespace(outputs=made, scheduler_stats=drafts))
        clock.record(["a", "b"])
    completions = {"a": [5, 6, 7, 8, 9], "b": [5]}
    finished = [clock.finished("p", output(name, tokens)) for name, tokens in completions.items()]
    assert [(each.passes, each.accepted) for each in finished] == [(3, 2), (1, 0)]
    report = clock.report(finished, seats=2)
    assert (report.passes, report.drafted, report.accepted) == (4, 12, 2)


def output(name: str, tokens: list[int]) -> SimpleNamespace:
    """An answer of vLLM."""
    completion = SimpleNamespace(token_ids=tokens, finish_reason="stop", logprobs=None, stop_reason=None)
    return SimpleNamespace(request_id=name, outputs=[completion])


def test_an_engine_of_das_cannot_be_stock() -> None:
    with pytest.raises(EngineError, match="stock is vLLM as it comes, without das"):
        engine_arguments("stock")


def test_stock_is_refused_where_an_engine_of_das_left_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(EngineError, match="VLLM_BATCH_INVARIANT=1 is set: build it in a new process"):
        build_stock(EngineSettings("nowhere", method="stock"))
