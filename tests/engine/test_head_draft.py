"""A history beside an EAGLE-3 head in a real engine (das_eagle3)."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import core_of, das_runner_of, runner_of
from conftest import Engines, roll
from test_eagle3_engine import PROBLEMS, PROMPTS, draft_likeliest_tokens, head_folder
from test_sample_identity import RandomLimits
from vllm import SamplingParams

import das
from das.engine.contract import versions
from das.engine.contract.versions import NotInstalled, UnsupportedVersion
from das.engine.drafters.support import require_head
from das.engine.engine_config import das_options
from das.errors import EngineError
from das.verify.coupled import CoupledSampler

__all__ = ["head_folder"]  # a fixture
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6, "top_p": 0.9},
    "hot": {"temperature": 1.3, "repetition_penalty": 1.1},
    "min_p": {"min_p": 0.05},
    "greedy": {"temperature": 0.0},
}
NO_HISTORY = {"min_prob": 1.0}  # no token is that sure


def rollout(llm: Any, tick: int = 1, **sampling: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The responses and the report."""
    params = [
        SamplingParams(**{"temperature": 1.0, "max_tokens": 60, "seed": index, "detokenize": False, **sampling})
        for index in range(8)
    ]
    tokens, _, report = roll(llm, PROMPTS * 2, params, PROBLEMS * 2, tick)
    return tokens, report


def proposer_of(llm: Any) -> Any:
    return core_of(llm).model_executor.driver_worker.worker._das_proposer


def build(engines: Engines, policy: str, head: Path, **settings: Any) -> Any:
    spec = {"model": str(head), "num_speculative_tokens": 3}
    settings = {"budget": {"name": "fixed", "tokens": 12}, **settings}
    return engines.build(policy, method="das_eagle3", speculative=spec, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"runner": "second", "asynchronous": True}])
def test_nothing_changes_and_both_draft(
    engines: Engines, repetitive_policy: str, head_folder: Path, settings: dict[str, Any]
) -> None:
    undrafted = engines.build(repetitive_policy)
    expected = {name: rollout(undrafted, **sampling)[0] for name, sampling in SAMPLING.items()}
    llm = build(engines, repetitive_policy, head_folder, **settings)
    for tick, (name, sampling) in enumerate(SAMPLING.items(), start=1):
        tokens, report = rollout(llm, tick, **sampling)
        assert tokens == expected[name], name
        assert report["draft_passes"] > 0
        assert not report["alarms"]
        assert sum(map(len, tokens)) > 1.05 * report["passes"]


@pytest.mark.slow
def test_the_head_drafts_what_it_drafts_in_vllms_own_method(
    engines: Engines, repetitive_policy: str, head_folder: Path
) -> None:
    """Without a history, likeliest tokens: the same responses in as many passes, however long the head waits."""
    spec = {"model": str(head_folder), "num_speculative_tokens": 3}
    llm = engines.build(repetitive_policy, method="eagle3", speculative=spec)
    draft_likeliest_tokens(llm)
    expected, theirs = rollout(llm)
    llm = build(engines, repetitive_policy, head_folder, drafter=NO_HISTORY, budget={"name": "fixed", "tokens": 3})
    proposer = proposer_of(llm)
    proposer.drafting_model.sampler = CoupledSampler((math.inf,))
    always: dict[tuple[str, int], list[int]] = {}
    drafts = always
    propose = proposer.propose

    def noted(sampled: Any, lengths: Any, *rest: Any) -> Any:
        made = propose(sampled, lengths, *rest)
        for name, length, draft in zip(proposer._runner.input_batch.req_ids, lengths.tolist(), made, strict=False):
            if draft:
                drafts[name.split("-")[0][-3:], length] = draft
        return made

    proposer.propose = noted
    tokens, ours = rollout(llm)
    assert tokens == expected
    assert ours["passes"] == pytest.approx(theirs["passes"], rel=0.01)
    llm.reset_prefix_cache()
    drafts = sometimes = {}
    first = min(int(name) for name, _ in always)
    proposer.draft_round.budget = RandomLimits([0, 0, 0, 3])
    proposer.draft_round.budget.trim = lambda live, drafts: drafts.counts.tolist()
    assert rollout(llm)[0] == expected
    later = min(int(name) for name, _ in sometimes)
    both = [
        (always[str(int(name) - later + first), at], own)
        for (name, at), own in sometimes.items()
        if (str(int(name) - later + first), at) in always
    ]
    assert len(both) > 20
    assert sum(one == other for one, other in both) >= 0.97 * len(both)


@pytest.mark.slow
def test_an_evaluation_and_a_checkpoint_change_no_draft(
    engines: Engines, repetitive_policy: str, head_folder: Path, tmp_path: Path
) -> None:
    counts = ("passes", "drafted", "draft_passes", "draft_rows")

    def two_more(llm: Any) -> list[list[int]]:
        llm.reset_prefix_cache()
        return [[rollout(llm, tick)[1][name] for name in counts] for tick in (2, 3)]

    llm = build(engines, repetitive_policy, head_folder)
    rollout(llm, 1)
    llm.collective_rpc("das_save_state", args=(str(tmp_path),))
    llm.collective_rpc("das_begin_evaluation")
    evaluated = rollout(llm, 2, temperature=0.6)[1]
    llm.collective_rpc("das_end_evaluation")
    assert evaluated["draft_passes"] > 0
    expected = two_more(llm)
    other = build(engines, repetitive_policy, head_folder)
    other.collective_rpc("das_load_state", args=(str(tmp_path),))
    assert two_more(other) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"speculative": {"num_speculative_tokens": 2}}, "needs a head"),
        ({"speculative": {"model": "x", "num_speculative_tokens": 8}}, "1 to 7 tokens a pass, not 8"),
        ({"speculative": {"model": "x", "num_speculative_tokens": 3}, "branch_blocks": 8}, "drafts chains only"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((EngineError, ValueError), match=words):
        das.engine_arguments(method="das_eagle3", **arguments)


@pytest.mark.parametrize("head", [3, {}, {"passes": 0}, {"passes": 3, "history": True}])
def test_raw_settings_of_another_form_are_refused(head: Any) -> None:
    with pytest.raises(ValueError, match="give passes, a whole number from 1 to 7"):
        das_options(SimpleNamespace(additional_config={"das": {"head": head}}))
    with pytest.raises(ValueError, match="chains only"):
        das_options(SimpleNamespace(additional_config={"das": {"head": {"passes": 3}, "branch_blocks": 8}}))


def test_engines_that_cannot_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(**changes: Any) -> Any:
        parallel = SimpleNamespace(tensor_parallel_size=changes.get("ranks", 1), data_parallel_size=1)
        return SimpleNamespace(
            parallel_config=parallel,
            kv_transfer_config=changes.get("transfer"),
            model_config=SimpleNamespace(uses_mrope=False, max_model_len=1024),
            lora_config=changes.get("lora"),
            speculative_config=SimpleNamespace(
                disable_padded_drafter_batch=changes.get("lists", True),
                draft_model_config=SimpleNamespace(
                    max_model_len=changes.get("positions", 1024),
                    hf_config=SimpleNamespace(eagle_config={"use_aux_hidden_state": changes.get("inner", True)}),
                ),
            ),
        )

    require_head(config())
    for changes, words in (
        ({"ranks": 2}, "one rank only"),
        ({"transfer": 1}, "not with KV transfer"),
        ({"lora": 1}, "LoRA adapters"),
        ({"lists": False}, "needs disable_padded_drafter_batch=True"),
        ({"positions": 512}, "the head knows 512 positions, and the engine has 1024: set max_model_len=512"),
        ({"inner": False}, "reads no hidden states of inner layers"),
    ):
        with pytest.raises(NotInstalled, match=words):
            require_head(config(**changes))
    monkeypatch.setattr(versions, "DAS_EAGLE3", ("0.1.0",))
    with pytest.raises(UnsupportedVersion, match=r"das_eagle3 needs 0.1.0; choose another method, such as eagle3"):
        require_head(config())


@pytest.mark.slow
def test_a_head_sees_nothing_of_a_cached_prompt_that_it_has_not_read(
    engines: Engines, repetitive_policy: str, head_folder: Path
) -> None:
    """The blocks of such a prompt hold what another text left there. Whatever it is, the drafts are the same."""
    llm = build(engines, repetitive_policy, head_folder, extra={"block_size": 32}, drafter=NO_HISTORY)
    proposer, runner = proposer_of(llm), runner_of(llm)
    proposer.drafting_model.sampler = CoupledSampler((1.0,))
    prompts = [[6 + (7 * i + j) % 200 for j in range(100)] for i in range(4)]
    params = [SamplingParams(temperature=1.0, max_tokens=40, seed=index, detokenize=False) for index in range(4)]
    budget = proposer.draft_round.budget
    proposer.draft_round.budget = RandomLimits([0])  # the head is not asked, and reads nothing
    expected, _, _ = roll(llm, prompts, params, PROBLEMS[:4], 1)
    proposer.draft_round.budget = budget
    (name,) = das_runner_of(llm).head_passes().attention.layer_names
    cache = runner.compilation_config.static_forward_context[name].kv_cache
    cache = cache[0] if isinstance(cache, list) else cache
    reports = []
    for tick, left in enumerate((3.0, -30.0), start=2):
        cache.fill_(left)
        tokens, _, report = roll(llm, prompts, params, PROBLEMS[:4], tick)
        assert tokens == expected
        assert not report["alarms"]
        reports.append({name: report[name] for name in ("passes", "drafted", "draft_passes", "draft_rows")})
    assert reports[0] == reports[1]
    assert reports[0]["draft_passes"] > 0
    llm.reset_prefix_cache()
    rows = roll(llm, prompts, params, PROBLEMS[:4], 4)[2]["draft_rows"]
    assert rows > reports[0]["draft_rows"]  # now it reads the prompts as well
