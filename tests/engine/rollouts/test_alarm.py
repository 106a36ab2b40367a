"""The alarm: silent while speculation works, and right about the cause when it does not."""

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from cases import das_runner_of
from conftest import Engines

from das.budget import LiveRequest
from das.budget.lengths import LongestFirst
from das.engine.rollouts.alarm import Alarm, SilenceWatch
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed, roll_out

Go = Callable[..., tuple[list[str], Rollout]]

PROMPTS = {"a": [1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8]}


def step(alarm: Alarm, accepted: int, ids: dict[str, str] | None = None, lost: int = 0) -> list[str]:
    for problem, prompt in PROMPTS.items():
        for _ in range(4):
            alarm.begin(ids[problem] if ids else problem, prompt)
    return alarm.end_step(passes=1000, num_drafted=5000, num_accepted=accepted, lost_tokens=lost)


def test_silent_while_acceptance_grows_wavers_or_was_never_there() -> None:
    alarm = Alarm()
    assert [step(alarm, accepted) for accepted in (0, 500, 2000, 1500, 900, 2500, 1000)] == [[]] * 7
    hopeless = Alarm()
    assert [step(hopeless, accepted) for accepted in (50, 60, 50, 55, 5, 0)] == [[]] * 6


def test_collapse_is_reported_in_the_step_it_happens() -> None:
    alarm = Alarm()
    for _ in range(3):
        assert not step(alarm, 2000)
    (line,) = step(alarm, 300)
    assert "acceptance collapsed: 0.30" in line
    assert "weight sync" in line


def test_wrong_problem_ids_are_named() -> None:
    alarm = Alarm()
    for _ in range(3):
        step(alarm, 2000)
    mixed, collapsed = step(alarm, 200, ids=dict(zip("abcd", "bcda", strict=True)))
    assert "mixed up: 16 of 16" in mixed
    assert "column problem_id" in mixed, "the user's word"
    assert "see above" in collapsed
    (collapsed,) = step(alarm, 200, ids=dict(zip("abcd", "cdab", strict=True)))
    assert "the problem ids are still wrong" in collapsed, "the ids themselves are said once"
    fresh = Alarm()
    step(fresh, 0)
    (line,) = step(fresh, 0, ids={problem: f"{problem}-2" for problem in PROMPTS})
    assert "do not repeat" in line


def test_a_budget_that_holds_back_says_so_once() -> None:
    """On a busy machine the same script may draft 6 tokens in one run and 247 in the next."""
    watch = SilenceWatch()
    assert not watch.end_rollout(passes=640, drafted=247, declined=True)
    assert not watch.end_rollout(passes=640, drafted=0, declined=False), "there was nothing to draft"
    assert not watch.end_rollout(passes=90, drafted=0, declined=True)
    (line,) = watch.end_rollout(passes=640, drafted=6, declined=True)
    assert line.startswith("the budget holds back (6 drafted tokens in 640 passes of requests)")
    assert not watch.end_rollout(passes=640, drafted=0, declined=True)


def test_das_says_what_is_wrong_beside_trl_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's import lets vLLM, and every logger below vLLM's, say nothing but errors."""
    monkeypatch.setattr(logging.getLogger("vllm"), "level", logging.ERROR)
    watch, request = SilenceWatch(), LiveRequest("a", "problem", 50, limit=8)
    for _ in range(2**10):
        watch.observe([request], drafted=False)
    assert "speculation: nothing was drafted in the last 1024 passes" in caplog.text


def test_few_drafts_that_hold_are_no_collapse() -> None:
    """Fewer drafts, drafts that the budget cuts, and evaluations are not the drafter's failure. No drafts at all may be
    one."""
    alarm = Alarm()
    for _ in range(3):
        step(alarm, 2000)
    assert alarm.end_step(passes=1000, num_drafted=300, num_accepted=250, lost_tokens=0) == []
    assert alarm.end_step(passes=1000, num_drafted=5000, num_accepted=0, lost_tokens=0, judged=False) == []
    none = {"passes": 1000, "num_drafted": 0, "num_accepted": 0, "lost_tokens": 0}
    assert alarm.end_step(**none, declined=True) == []
    (line,) = alarm.end_step(**none)
    assert "nothing was drafted" in line


def test_a_conversation_that_goes_on_keeps_its_problem() -> None:
    alarm = Alarm()
    for length in (10, 30, 80):
        for problem, first in (("a", 1), ("b", 2)):
            alarm.begin(problem, [first, *range(100, 100 + length)])
        assert alarm.end_step(passes=10, num_drafted=0, num_accepted=0, lost_tokens=0) == []


def test_a_stale_index_is_named() -> None:
    (line,) = step(Alarm(), 2000, lost=700)
    assert "index is stale: 700" in line


@pytest.fixture
def roll(engines: Engines, tiny_policy: str) -> tuple[Go, Any]:
    """The engine, with 4 slots and drafts, and a function that rolls out 4 problems x 2 siblings on it. The function
    returns the alarms and the rollout."""
    from vllm import SamplingParams

    llm = engines.fresh(
        tiny_policy, method="das", max_num_seqs=4, drafter={"min_prob": 0.005}, budget={"name": "fixed", "tokens": 8}
    )
    tick = 0

    def go(ids: dict[str, str] | None = None, schedule: LongestFirst | None = None) -> tuple[list[str], Rollout]:
        nonlocal tick
        tick += 1
        names = [name for name in PROMPTS for _ in range(2)]
        prompts = [{"prompt_token_ids": [9 + ord(name), *range(20, 28)]} for name in names]
        problems = [ids[name] if ids else name for name in names]
        params = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
        seeds = [request_seed(0, 0, i) for i in range(len(names))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outputs, rollout = roll_out(
                llm, RolloutRequest(prompts, params, problems, seeds, tick, next_history_tick=tick, schedule=schedule)
            )
        alarms = rollout.report.alarms
        assert [str(w.message).split(": ", 1)[1] for w in caught if "speculation" in str(w.message)] == alarms
        assert [list(output.outputs[0].token_ids) for output in outputs] == rollout.responses
        return alarms, rollout

    return go, llm


def test_a_drafting_engine_raises_the_alarm(roll: tuple[Go, Any]) -> None:
    """Silent while the same rollout is repeated and nearly all of it is accepted. Then ids are mixed up, and then the
    history stays empty."""
    go, llm = roll
    quiet = [go() for _ in range(5)]
    assert not any(alarms for alarms, _ in quiet)
    assert len({str(rollout.responses) for _, rollout in quiet}) == 1
    alarms, rollout = go(ids=dict(zip("abcd", "bcda", strict=True)))
    assert "mixed up" in alarms[0]
    assert rollout.responses == quiet[0][1].responses
    proposer = das_runner_of(llm).drafter
    drafter = proposer.draft_round.drafter
    end = drafter.end
    drafter.end = lambda request, keep: end(request, keep=False)
    alarms, _ = go()
    assert [alarm for alarm in alarms if "index is stale: 480" in alarm], alarms


def test_the_schedule_touches_no_token(roll: tuple[Go, Any]) -> None:
    go, _ = roll
    _, given = go()
    schedule = LongestFirst()
    schedule.observe(["a", "b", "c", "d"], [5, 50, 500, 5000])
    assert schedule.order([name for name in PROMPTS for _ in range(2)])[:2] == [6, 7]
    _, scheduled = go(schedule=schedule)
    assert scheduled.responses == given.responses
    first = [request.first_s for request in scheduled.requests]
    assert max(first[4:]) < min(first[:4])  # 4 slots: d and c started before a and b


def test_time_between_rollouts_is_no_pass(roll: tuple[Go, Any]) -> None:
    """Between two rollouts come training and a weight check. The budget must not learn their time as a slow pass."""
    from vllm import SamplingParams

    go, llm = roll
    proposer = das_runner_of(llm).drafter
    seconds: list[float] = []
    proposer.draft_round.budget.observe_pass = lambda done: seconds.append(done.seconds)
    go()
    time.sleep(1.2)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=8), use_tqdm=False)
    time.sleep(1.2)
    go()
    assert len(seconds) > 20
    assert max(seconds) < 1.0


def test_those_who_only_end_rollouts_hear_no_alarm(roll: tuple[Go, Any]) -> None:
    """A plain vLLM script calls generate, then das_end_rollout. The window drops all earlier rollouts."""
    from vllm import SamplingParams

    _, llm = roll
    params = SamplingParams(max_tokens=20, ignore_eos=True, extra_args={"das_problem": "p"})
    for tick in (100, 200, 300):
        llm.generate([{"prompt_token_ids": [5, 6, 7]}] * 4, params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(tick,))
        assert report["alarms"] == []
        assert report["history_tokens"] in (0, 80)


def test_a_slot_taken_over_is_no_decode_pass_and_all_tokens_are_seen(engines: Engines, tiny_policy: str) -> None:
    """More requests than slots, prompts cut in pieces, responses up to the model's limit: the budget learns only from
    passes in which every request decoded before, and the drafter sees every token."""
    from vllm import SamplingParams

    llm = engines.build(
        tiny_policy,
        method="das",
        max_model_len=128,
        max_num_seqs=2,
        max_num_batched_tokens=80,
        budget={"name": "fixed", "tokens": 32},
    )
    proposer = das_runner_of(llm).drafter
    decoding: list[bool] = []
    watch = proposer._watch_passes

    def watched(names: list[str], *rest: Any) -> Any:
        before = set(proposer._decoding)
        done = watch(names, *rest)
        decoding.append(bool(done))
        assert not decoding[-1] or set(names) <= before
        return done

    proposer._watch_passes = watched
    prompts = [{"prompt_token_ids": [7 + i, *range(20, 90)]} for i in range(6)]
    params = SamplingParams(temperature=1.0, max_tokens=400, ignore_eos=True)
    _, rollout = roll_out(llm, RolloutRequest(prompts, params, list("abcdef"), range(6), step=1, next_history_tick=1))
    assert rollout.tokens == rollout.report.history_tokens
    assert [len(response) for response in rollout.responses] == [128 - 71] * 6
    assert len(decoding) == rollout.report.decode_steps
    assert 0 < sum(decoding) < len(decoding) - 3


def test_later_turns_of_a_conversation_bring_other_prompts() -> None:
    """Siblings have the first prompt in common, not what follows it. Nor do the steps."""
    alarm = Alarm()
    for number in range(4):
        for problem, prompt in PROMPTS.items():
            for sibling in range(4):
                for turn in range(4):
                    alarm.begin(problem, [*prompt, *([100 * number + 10 * sibling + turn] * turn)])
        assert alarm.end_step(passes=1000, num_drafted=5000, num_accepted=2000, lost_tokens=0) == []
