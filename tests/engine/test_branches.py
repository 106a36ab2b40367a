"""Exactness level 2 with drafts that branch: tokens and log-probs equal those of an engine without drafts, bit for bit.

Bugs made on purpose with which these tests were seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from cases import das_runner_of
from conftest import Engines, roll
from test_identity import PROMPTS, parameters
from tree_proposer import TreeProposer
from vllm import SamplingParams

from das.engine.branching.scratch import with_scratch_blocks
from das.engine.engine_config import DasOptions
from das.errors import NotInstalled
from das.verify.admission import PROBLEM_KEY

PROBLEMS = [str(i) for i in range(24)]
BRANCHING: dict[str, Any] = {
    "method": "das",
    "branch_blocks": 48,
    "budget": {"name": "fixed", "tokens": 32},
    "extra": {"block_size": 32},
}
SIZES = (0, 1, 2, 5, 12, 24, 32)


def draft_trees(llm: Any, responses: Sequence[Sequence[int]], sizes: Sequence[int] = SIZES) -> TreeProposer:
    """Let the engine draft random trees for requests that will emit `responses`."""
    runner = das_runner_of(llm)
    truth = {problem: [list(response)] for problem, response in zip(PROBLEMS, responses, strict=False)}
    runner.drafter = TreeProposer(truth, sizes)
    return runner.drafter


def two_turns(llm: Any, responses: Any = None) -> tuple[Any, Any, list[dict[str, Any]], int]:
    """Roll out requests of many kinds, then requests that go on from their responses: their prompts are cached.

    responses: what the two turns emit, if the engine shall draft. Returns (tokens, log-probs) of both turns, their
    reports, and how often tokens of a branch were accepted.
    """
    prompts = [PROMPTS[i % 4] for i in range(24)]
    results: list[Any] = []
    reports, num_off_trunk = [], 0
    for turn in range(2):
        if responses is not None:
            proposer = draft_trees(llm, responses[turn])
        *answers, report = roll(llm, prompts, parameters(), PROBLEMS, turn)
        num_off_trunk += 0 if responses is None else proposer.num_off_trunk
        results.append(answers)
        reports.append(report)
        prompts = [prompt + tokens for prompt, tokens in zip(prompts, answers[0], strict=True)]
    return results[0], results[1], reports, num_off_trunk


@pytest.fixture(scope="module")
def undrafted(engines: Engines, tiny_policy: str) -> Any:
    return two_turns(engines.build(tiny_policy))[:2]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 3, "branch_blocks": 8, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 64, "extra": {}},  # prompts in chunks, drafts cut by the scheduler; blocks of 128
    ],
    ids=["max_num_seqs16", "few_scratch_blocks", "chunked"],
)
def test_trees_change_nothing(engines: Engines, tiny_policy: str, undrafted: Any, settings: dict[str, Any]) -> None:
    llm = engines.build(tiny_policy, **{**BRANCHING, **settings})
    first, second, reports, num_off_trunk = two_turns(llm, [turn[0] for turn in undrafted])
    assert first == undrafted[0]
    assert second == undrafted[1]
    assert num_off_trunk > 60, "hardly any token of a branch was accepted: the test would prove nothing"
    for report, (tokens, _) in zip(reports, undrafted, strict=True):
        assert report["branches"] > 100
        assert report["copied_blocks"] > 50
        assert report["passes"] < 0.7 * sum(map(len, tokens))


def finished(llm: Any, cases: Sequence[dict[str, Any]]) -> list[Any]:
    """Tokens, text and reason of each response."""
    params = [
        SamplingParams(seed=i, ignore_eos=True, extra_args={PROBLEM_KEY: str(i)}, **case)
        for i, case in enumerate(cases)
    ]
    prompts: Any = [{"prompt_token_ids": PROMPTS[i % 4]} for i in range(len(cases))]
    samples = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    return [(list(sample.token_ids), sample.text, sample.finish_reason, sample.stop_reason) for sample in samples]


def test_limits_inside_a_branch(engines: Engines, tiny_policy: str) -> None:
    """A response ends exactly at max_tokens, at max_model_len, at a stop token or a stop string, also in a branch."""
    cases: list[dict[str, Any]] = [{"max_tokens": n} for n in (1, 2, 7, 33)] + [{"max_tokens": 400}] * 4
    cases += [{"max_tokens": 80, "stop_token_ids": list(range(50, 70))}] * 8
    cases += [{"max_tokens": 80, "stop": ["e", "1", "so"]}] * 8
    # The proposer knows how responses would go on behind their end, so that the end lies within what is accepted.
    truth = [tokens for tokens, *_ in finished(engines.build(tiny_policy), [{"max_tokens": 126}] * 24)]
    expected = finished(engines.build(tiny_policy, max_model_len=128), cases)
    llm = engines.build(tiny_policy, **BRANCHING, max_model_len=128)
    for size in (8, 16, 32):
        proposer = draft_trees(llm, truth, [size])
        assert finished(llm, cases) == expected
        assert proposer.num_off_trunk > 15
    assert [len(tokens) for tokens, *_ in expected[:4]] == [1, 2, 7, 33]
    assert len(expected[4][0]) == 128 - len(PROMPTS[0])
    assert {reason for *_, reason, _ in expected} == {"length", "stop"}


def test_aborted_requests_leave_the_others_alone(engines: Engines, tiny_policy: str, undrafted: Any) -> None:
    expected = undrafted[0][0]
    llm = engines.build(tiny_policy, **BRANCHING)
    proposer = draft_trees(llm, expected, [24])
    engine = llm.llm_engine
    for i, params in enumerate(parameters()):
        params.extra_args = {PROBLEM_KEY: str(i)}
        engine.add_request(str(i), {"prompt_token_ids": PROMPTS[i % 4]}, params)
    finished = {}
    num_steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                finished[int(output.request_id)] = list(output.outputs[0].token_ids)
        num_steps += 1
        if num_steps % 3 == 0 and num_steps <= 18:
            engine.abort_request([str(2 * num_steps // 3)])
    assert len(finished) >= 18
    assert all(tokens == expected[i] for i, tokens in finished.items())
    assert proposer.num_off_trunk > 30


def test_a_grammar_is_followed_along_chains_only(engines: Engines, tiny_policy: str) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    def answers(llm: Any) -> list[list[int]]:
        params = [
            SamplingParams(
                seed=i,
                max_tokens=60,
                structured_outputs=StructuredOutputsParams(regex="(([0-9]|a|e){3,5} ){4,8}x"),
                extra_args={PROBLEM_KEY: str(i)},
            )
            for i in range(8)
        ]
        outputs = llm.generate([{"prompt_token_ids": PROMPTS[i % 4]} for i in range(8)], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    expected = answers(engines.build(tiny_policy))
    llm = engines.build(tiny_policy, **BRANCHING)
    proposer = draft_trees(llm, expected, [24])
    # Decoys that a grammar may allow: of a draft that is taken for a chain, vLLM drops what the grammar forbids.
    proposer.decoys = [token for tokens in expected for token in tokens]
    for _ in range(3):
        assert answers(llm) == expected


def test_the_drafter_gives_the_last_requests_trees(engines: Engines, repetitive_policy: str) -> None:
    """Six requests draft chains; when at most two are left, they draft trees. Tokens stay those without drafts."""
    prompts = [PROMPTS[i % 2] for i in range(6)]
    problems = [str(i % 2) for i in range(6)]

    def rollouts(llm: Any) -> tuple[list[Any], list[dict[str, Any]]]:
        params = [[SamplingParams(temperature=1.0, max_tokens=20 + 20 * i, seed=9 * tick + i) for i in range(6)]
                  for tick in range(3)]  # fmt: skip
        answers = [roll(llm, prompts, params[tick], problems, tick) for tick in range(3)]
        return [tokens for tokens, *_ in answers], [report for *_, report in answers]

    expected, _ = rollouts(engines.build(repetitive_policy))
    budget = {"name": "fixed", "tokens": 16}
    tokens, chains = rollouts(engines.build(repetitive_policy, method="das", budget=budget))
    assert tokens == expected
    branching = engines.build(repetitive_policy, method="das", budget=budget, branch_blocks=16)
    tokens, trees = rollouts(branching)
    assert tokens == expected
    branching.collective_rpc("das_use_proposer", args=("another", DasOptions(budget=budget)))
    tokens, trees_of_another = rollouts(branching)
    assert tokens == expected
    assert all(report["branches"] > 20 for report in trees_of_another), "the engine's blocks are any proposer's"
    assert all(report["branches"] == 0 for report in chains)
    assert all(report["branches"] > 20 for report in trees)
    assert sum(report["passes"] for report in trees) < sum(report["passes"] for report in chains)


def test_the_proposer_counts_what_was_verified(engines: Engines, repetitive_policy: str) -> None:
    """Trees for six requests share the blocks of one: nodes are dropped, and not counted."""
    drafter = {"window": 4, "min_prob": 0.0}
    llm = engines.build(repetitive_policy, **{**BRANCHING, "branch_blocks": 8}, drafter=drafter)
    proposer = das_runner_of(llm).drafter
    draft_round = proposer.draft_round
    draft_round.branch_blocks = 48
    observe, keep = draft_round.observe, proposer.keep
    counted: list[int] = []
    dropped: list[int] = []

    def count(requests: Any, num_drafted: Sequence[int], *args: Any) -> None:
        counted.append(sum(num_drafted))
        observe(requests, num_drafted, *args)

    def count_dropped(parents: dict[str, list[int]]) -> None:
        dropped.append(sum(len(proposer.parents[name]) - len(kept) for name, kept in parents.items()))
        keep(parents)

    draft_round.observe, proposer.keep = count, count_dropped
    for tick in range(2):
        counted.clear()
        params = [SamplingParams(temperature=1.5, max_tokens=60, seed=9 * tick + i) for i in range(6)]
        *_, report = roll(llm, PROMPTS[:1] * 6, params, PROBLEMS[:1] * 6, tick)
        assert sum(counted) == report["drafted"]
    assert sum(dropped) > 100, "hardly a node was dropped: the test would prove nothing"


def test_what_was_not_checked_is_refused() -> None:
    config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=None)] * 2, kv_cache_tensors=[None])
    with pytest.raises(NotInstalled, match=r"need a model that .*: set branch_blocks=0, or "):
        with_scratch_blocks(config, 8)
