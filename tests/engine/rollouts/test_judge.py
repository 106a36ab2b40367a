"""The judge: silent while speculation works, and loud when it does not."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from cases import das_runner_of
from conftest import Engines

from das.budget import TargetPass
from das.budget.lengths import LongestFirst
from das.engine.rollouts.judge import Judge
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed, roll_out

Go = Callable[..., tuple[list[str], Rollout]]

PROMPTS = {"a": [1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8]}


def step(judge: Judge, accepted: int, drafted: int = 5000, declined: bool = False) -> list[str]:
    return judge.lines(1000, drafted, accepted, declined)


def test_silent_while_acceptance_grows_or_wavers() -> None:
    judge = Judge()
    assert [step(judge, accepted) for accepted in (500, 2000, 1500, 900, 2500, 1000)] == [[]] * 6
    hopeless = Judge()
    assert [step(hopeless, accepted) for accepted in (50, 60, 50, 55, 5)] == [[]] * 5


def test_zero_is_said_of_every_rollout() -> None:
    judge = Judge()
    for _ in range(3):
        (line,) = step(judge, 0)
        assert line.startswith("none of 5000 drafted tokens was accepted in 1000 passes")
        (line,) = step(judge, 0, drafted=0)
        assert line.startswith("nothing was drafted in 1000 passes, though requests may draft")
    assert step(judge, 0, drafted=0, declined=True)[0].startswith("nothing was drafted in 1000 passes: the budget let")


def test_short_rollouts_are_judged_together() -> None:
    judge = Judge()
    assert [judge.lines(30, 8, 0) for _ in range(3)] == [[]] * 3
    assert "none of 32 drafted tokens was accepted in 120 passes" in judge.lines(30, 8, 0)[0]
    assert [judge.lines(30, 8, accepted) for accepted in (0, 0, 0, 1)] == [[]] * 4


def test_far_fewer_than_usual_is_said_in_the_step_it_happens_with_the_usual_causes() -> None:
    judge = Judge()
    for _ in range(3):
        assert not step(judge, 2000)
    (line,) = step(judge, 300)
    assert line.startswith("far fewer tokens were accepted than usual: 0.30 a pass, 2.00 usually. Usual causes: ")
    for cause in ("column problem_id", "weight sync", "temperature", "das_end_rollout", "drafter.min_prob", "budget"):
        assert cause in line


def test_fewer_drafts_that_hold_are_the_budgets_choice() -> None:
    judge = Judge()
    for _ in range(3):
        step(judge, 2000)
    assert step(judge, 250, drafted=300, declined=True) == []
    assert "far fewer" in step(judge, 250, drafted=300)[0], "the drafter found little"


@pytest.fixture
def roll(engines: Engines, tiny_policy: str) -> tuple[Go, Any]:
    """The engine, with 4 slots and drafts, and a function that rolls out 4 problems x 2 siblings on it. The function
    returns the alarms and the rollout."""
    from vllm import SamplingParams

    llm = engines.fresh(
        tiny_policy, method="das", max_num_seqs=4, drafter={"min_prob": 0.005}, budget={"name": "fixed", "tokens": 8}
    )
    tick = 0

    def go(run_seed: int = 0, schedule: LongestFirst | None = None) -> tuple[list[str], Rollout]:
        nonlocal tick
        tick += 1
        names = [name for name in PROMPTS for _ in range(2)]
        prompts = [{"prompt_token_ids": [9 + ord(name), *range(20, 28)]} for name in names]
        params = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
        seeds = [request_seed(run_seed, 0, i) for i in range(len(names))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outputs, rollout = roll_out(
                llm, RolloutRequest(prompts, params, names, seeds, tick, next_history_tick=tick, schedule=schedule)
            )
        alarms = rollout.report.alarms
        assert [str(w.message).split(": ", 1)[1] for w in caught if "speculation" in str(w.message)] == alarms
        assert [list(output.outputs[0].token_ids) for output in outputs] == rollout.responses
        return alarms, rollout

    return go, llm


def test_a_drafting_engine_is_judged(roll: tuple[Go, Any]) -> None:
    """Silent while the same rollout is repeated and nearly all of it is accepted. Then texts are other ones, and then
    nothing is found."""
    go, llm = roll
    quiet = [go() for _ in range(5)]
    assert not any(alarms for alarms, _ in quiet[1:])
    assert len({str(rollout.responses) for _, rollout in quiet}) == 1
    (line,), rollout = go(run_seed=1)
    assert line.startswith("far fewer tokens were accepted than usual")
    assert rollout.responses != quiet[0][1].responses
    drafter = das_runner_of(llm).flights.drafter.draft_round.drafter
    propose = drafter.propose_batch
    drafter.propose_batch = lambda names, limits, floors: propose(names, [0] * len(limits), floors)
    (line,), rollout = go()
    assert line.startswith("nothing was drafted in 480 passes, though requests may draft")
    assert rollout.responses == quiet[0][1].responses


def test_the_turns_of_a_rollout_are_judged_together(roll: tuple[Go, Any]) -> None:
    from vllm import SamplingParams

    _, llm = roll
    drafter = das_runner_of(llm).flights.drafter.draft_round.drafter
    propose = drafter.propose_batch
    drafter.propose_batch = lambda names, limits, floors: propose(names, [0] * len(limits), floors)
    llm.collective_rpc("das_begin_rollout", args=(4,))
    for turn in range(2):
        if turn:
            llm.collective_rpc("das_begin_turn", args=(4,))
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        llm.generate([{"prompt_token_ids": [5, 6, 7]}] * 4, params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_turn")
        assert report["passes"] == 120
        assert "alarms" not in report
    (report,) = llm.collective_rpc("das_end_rollout", args=(1,))
    assert report["alarms"][0].startswith("nothing was drafted in 240 passes, though")


def test_budgets_learn_from_decode_passes_alone(roll: tuple[Go, Any]) -> None:
    """Not from those in which a request begins in another's slot, nor from what lies between two rollouts."""
    go, llm = roll
    seen: list[TargetPass] = []
    das_runner_of(llm).flights.drafter.draft_round.budget.observe_pass = seen.append
    for _ in range(2):
        seen.clear()
        _, rollout = go()
        assert 20 < len(seen) < rollout.report.decode_steps - 1


def test_the_schedule_touches_no_token(roll: tuple[Go, Any]) -> None:
    go, _ = roll
    _, given = go()
    schedule = LongestFirst()
    schedule.observe(["a", "b", "c", "d"], [5, 50, 500, 5000])
    assert schedule.order([name for name in PROMPTS for _ in range(2)])[:2] == [6, 7]
    _, scheduled = go(schedule=schedule)
    assert scheduled.responses == given.responses
    first = [each.first_s for each in scheduled.finished]
    assert max(first[4:]) < min(first[:4])  # 4 slots: d and c started before a and b


def test_those_who_only_end_rollouts_are_not_judged_by_their_ticks(roll: tuple[Go, Any]) -> None:
    """A plain vLLM script calls generate, then das_end_rollout. The window drops all earlier rollouts."""
    from vllm import SamplingParams

    _, llm = roll
    params = SamplingParams(max_tokens=20, ignore_eos=True, extra_args={"das_problem": "p"})
    for tick in (100, 200, 300):
        llm.generate([{"prompt_token_ids": [5, 6, 7]}] * 4, params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(tick,))
        assert report["alarms"] == []
        assert report["history_tokens"] in (0, 80)
