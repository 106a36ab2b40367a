"""Engines whose callers bring neither seeds nor problem ids and announce no rollouts, or do so by half."""

import logging
import re
from typing import Any

import numpy as np
import pytest
from conftest import Engines
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

from das.engine import worker as das_worker
from das.engine.settings import DasOptions
from das.engine.worker import PlatformWorker
from das.general.errors import NotInstalled

PROMPTS = [[5, 6, 7], [5, 6, 7], [8, 9], [5, 6, 7], [8, 9], [30, 31, 32, 33]]


def generate(llm: Any, **arguments: Any) -> list[list[int]]:
    params = SamplingParams(**{"temperature": 0.6, "max_tokens": 60, "ignore_eos": True, **arguments})
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def load_same_weights(worker: Any) -> None:
    """As a trainer does it: straight into the model, and nobody is told."""
    model = worker.model_runner.get_model()
    weights = [(name, tensor.clone()) for name, tensor in model.named_parameters() if name == "model.norm.weight"]
    assert weights
    model.load_weights(weights)


def history(worker: Any) -> tuple[int, int, int]:
    """Tokens in the drafter's history, its tick, and the passes that the meter has counted."""
    runner = worker.das_runner
    drafter = runner.flights.drafter.draft_round.drafter
    return drafter.history_tokens, drafter.history_tick, len(runner.flights.meter.step_time_s)


def sequence(engines: Engines, policy: str, method: str) -> list[list[list[int]]]:
    """What an engine answers before and after its cache is reset, an abort, and new weights."""
    llm = engines.build(policy, method=method)
    answers = [generate(llm)]
    llm.reset_prefix_cache()
    answers.append(generate(llm))
    llm.llm_engine.add_request("aborted", {"prompt_token_ids": PROMPTS[0]}, SamplingParams(max_tokens=50))
    llm.llm_engine.step()
    llm.llm_engine.abort_request(["aborted"])
    answers.append(generate(llm))
    llm.collective_rpc(load_same_weights)
    answers.append(generate(llm))
    answers.append(generate(llm, temperature=0.0))
    answers.append(generate(llm, temperature=0.0))
    return answers


# Requests that any engine of das refuses in one line.
NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"extra_args": {"das_limit": -1}}, "das_limit must be a whole number of tokens in 0..2147483647, got '-1'"),
    ({"extra_args": {"das_limit": True}}, "das_limit must be"),
    ({"extra_args": {"das_problem": 7}}, "das_problem must be a string of at most 512 whole characters, got 7"),
    ({"extra_args": {"das_problem": "p" * 10_000}}, "512 whole characters, got 'ppp"),
    ({"logprob_token_ids": [1]}, "ask for logprobs=N"),
    ({"seed": 2**64}, "seed must fit into 64 bits, for all n=1 responses, got 18446744073709551616"),
    ({"seed": 2**64 - 1, "n": 2}, "seed must fit into 64 bits, for all n=2 responses"),
]


def refuse_nonsense(llm: Any) -> None:
    """The engine refuses it, and lives."""
    for arguments, words in NONSENSE:
        with pytest.raises(VLLMValidationError) as error:
            generate(llm, **arguments)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(VLLMValidationError, match="streaming input: an engine of das takes whole prompts"):
        llm.llm_engine.input_processor.process_inputs(
            "streamed", {"prompt_token_ids": PROMPTS[0]}, SamplingParams(), ("generate",), resumable=True
        )
    assert len(generate(llm, max_tokens=2, min_p=0.1, logit_bias={5: 1.0})) == len(PROMPTS)
    for seed in (-(2**63), 2**63 - 1, 2**64 - 2):
        assert len(generate(llm, max_tokens=2, seed=seed, n=2)) == len(PROMPTS)


def test_drafts_change_nothing_and_no_two_answers_are_equal(engines: Engines, tiny_policy: str) -> None:
    without = sequence(engines, tiny_policy, "none")
    with pytest.raises(NotInstalled, match="this engine has no drafter of which there could be another"):
        engines.llm.collective_rpc("das_use_proposer", args=("another", None))
    refuse_nonsense(engines.llm)
    drafted = sequence(engines, tiny_policy, "das")
    assert drafted == without
    sampled = [(tuple(PROMPTS[i]), tuple(tokens)) for answer in drafted[:4] for i, tokens in enumerate(answer)]
    assert len(set(sampled)) == len(sampled), "two requests drew the same noise"
    history_tokens, tick, passes = engines.llm.collective_rpc(history)[0]
    # The aborted request had a token. What ended in the last pass joins with the next one.
    assert 5 * 6 * 60 + 1 <= history_tokens < 6 * 6 * 60
    assert history_tokens % 60 == 1
    assert tick == 0
    assert passes < 3 * 60, "greedy answers that repeat were not drafted, or new weights did not end the rollout"


def test_counts_stay_bounded(engines: Engines, tiny_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer announced a rollout, and went away. Nobody announces another one, and no weights arrive."""
    monkeypatch.setattr(das_worker, "MAX_PASSES", 50)
    monkeypatch.setattr("das.drafter.drafter.TOKENS_PER_TICK", 500)
    llm = engines.fresh(tiny_policy, method="das")
    llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS),))
    generate(llm)
    llm.collective_rpc("das_end_rollout", args=(30,))
    rng = np.random.default_rng(0)
    for _ in range(12):
        prompts = [{"prompt_token_ids": rng.integers(5, 200, 4).tolist()} for _ in range(6)]
        llm.generate(prompts, SamplingParams(max_tokens=60, ignore_eos=True), use_tqdm=False)
        history_tokens, _, passes = llm.collective_rpc(history)[0]
        assert passes <= 50
        assert history_tokens <= 4 * 500 + 2 * 6 * 60  # the window's, and those of two calls
        proposer = llm.collective_rpc(lambda worker: worker.das_runner.flights.drafter)[0]
        assert len(proposer.record.measured_s) <= 50
    assert llm.collective_rpc(history)[0][1] >= 35


def test_new_weights_end_what_comes_after_an_announced_rollout(engines: Engines, tiny_policy: str) -> None:
    llm = engines.fresh(tiny_policy, method="das")
    llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS),))
    generate(llm)
    llm.collective_rpc(load_same_weights)
    generate(llm)
    assert llm.collective_rpc(history)[0][2] > 60, "new weights ended an announced rollout"
    llm.collective_rpc("das_end_rollout", args=(1,))
    generate(llm)
    llm.collective_rpc(load_same_weights)
    generate(llm, max_tokens=5)
    assert llm.collective_rpc(history)[0][2] <= 5


def test_a_second_trainer_brings_a_clock_of_its_own(engines: Engines, tiny_policy: str) -> None:
    llm = engines.fresh(tiny_policy, method="das")
    ticks = []
    for told in (3, 4, 0, 1, 2):
        llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS),))
        generate(llm, max_tokens=5)
        llm.collective_rpc("das_end_rollout", args=(told,))
        ticks.append(llm.collective_rpc(history)[0][1])
    assert ticks == [3, 4, 4, 5, 6]


def test_a_rollout_that_ends_under_a_live_request_doubles_no_token(engines: Engines, tiny_policy: str) -> None:
    llm = engines.fresh(tiny_policy, method="das")
    engine, params = llm.llm_engine, SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    for _ in range(2):  # the second time long drafts are accepted
        llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
    before = llm.collective_rpc("das_end_rollout", args=(1,))[0]["history_tokens"]
    engine.add_request("live", {"prompt_token_ids": [5, 6, 7]}, params)
    for _ in range(4):
        engine.step()
    part = llm.collective_rpc("das_end_rollout", args=(2,))[0]["history_tokens"] - before
    assert 4 < part < 70
    while engine.has_unfinished_requests():
        engine.step()
    whole = llm.collective_rpc("das_end_rollout", args=(3,))[0]["history_tokens"] - before
    assert whole == part + 80


def test_requests_that_ask_for_nonsense_are_refused_and_the_engine_lives(engines: Engines, tiny_policy: str) -> None:
    """One without drafts is asked above."""
    refuse_nonsense(engines.fresh(tiny_policy, method="das"))


def test_made_up_requests_teach_nothing(engines: Engines, tiny_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU vLLM runs some when an engine starts, to compile its kernels: their texts are no history."""
    llm = engines.fresh(tiny_policy, method="das")
    worker = llm.llm_engine.model_executor.driver_worker.worker

    def warm_up(worker: Any) -> bool:
        return run_mixed_prefill_decode_warmup(worker.model_runner, worker.execute_model, worker.sample_tokens, 8)

    monkeypatch.setattr(PlatformWorker, "compile_or_warm_up_model", warm_up)
    assert worker.compile_or_warm_up_model() is True, "vLLM has run them"
    llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS),))
    tokens = generate(llm)
    assert llm.collective_rpc("das_end_rollout", args=(1,))[0]["history_tokens"] == sum(map(len, tokens))


def test_a_trainer_that_died_leaves_nothing_open(engines: Engines, tiny_policy: str) -> None:
    """The next one of the same server drafts from the history of the trainings, not from an evaluation's."""
    reports = []
    for died in (False, True):
        llm = engines.fresh(tiny_policy, method="das")
        for tick in (1, 2):
            llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS),))
            tokens = generate(llm, seed=tick)
            (report,) = llm.collective_rpc("das_end_rollout", args=(tick,))
            if died:
                llm.collective_rpc("das_begin_rollout", args=(len(PROMPTS), True))
            llm.collective_rpc("das_meet_trainer")
        reports.append([tokens, *(report[name] for name in ("passes", "drafted", "history_tokens"))])
    assert reports[1] == reports[0]
    assert reports[0][-1] > sum(map(len, tokens))


def test_zero_is_said_in_reports_and_in_the_log(
    engines: Engines, tiny_policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it where nobody ends a rollout. TRL's import lets vLLM's loggers say nothing but errors."""
    monkeypatch.setattr(logging.getLogger("vllm"), "level", logging.ERROR)
    llm = engines.fresh(tiny_policy, method="das")

    def said(**asked: Any) -> list[str]:
        generate(llm, **asked)
        alarms: list[str] = llm.collective_rpc("das_end_rollout", args=(0,))[0].get("alarms", [])
        return alarms

    said()  # there is no history yet
    assert said() == said(extra_args={"das_limit": 0}) == []
    never = DasOptions(drafter={"min_prob": 1.0}, budget={"name": "fixed", "tokens": 8})
    llm.collective_rpc("das_use_proposer", args=("never", never))
    assert said(extra_args={"das_limit": 0}) == []
    assert [line[:66] for line in said()] == ["nothing was drafted in 360 passes, though requests may draft. Usua"]
    monkeypatch.setattr(das_worker, "MAX_PASSES", 100)
    assert not caplog.records
    for _ in range(3):
        generate(llm)
    assert re.search(r"speculation: nothing was drafted in \d+ passes, though requests may draft. Usual c", caplog.text)


def test_drafts_for_which_an_engine_was_not_built_are_refused(engines: Engines, tiny_policy: str) -> None:
    """Scratch blocks of self-drafts would be the policy's own. Last, because the engine is gone afterwards."""
    llm = engines.fresh(tiny_policy, method="das")
    own = DasOptions(self_draft="w8a8", budget={"name": "fixed", "tokens": 8})
    llm.collective_rpc("das_use_proposer", args=("self", own))
    with pytest.raises(NotInstalled, match="build it for the method self_draft"):
        generate(llm)
