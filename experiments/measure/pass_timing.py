"""Time decode passes of an engine: random drafts, which are verified and hardly ever accepted, for made-up prompts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from das.drafter import Draft, Drafter
from experiments.run.errors import RunFailed

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

WARM_UP = 4  # passes before the first timed one


class RandomDrafter(Drafter):
    """A drafter that proposes random tokens, always as many as allowed."""

    def __init__(self, vocabulary: int):
        self._random = np.random.default_rng(0)
        self._vocabulary = vocabulary

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        return [Draft(self._random.integers(0, self._vocabulary, limit).tolist(), [1.0] * limit) for limit in limits]

    def begin(
        self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None
    ) -> None: ...
    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None: ...
    def end(self, request: str, keep: bool = True) -> None: ...


def made_up_prompts(length: int, count: int) -> list[Any]:
    """Make up `count` prompts of `length` tokens. Their first tokens differ, so that they share no KV cache."""
    return [{"prompt_token_ids": [i, *([1] * (length - 1))]} for i in range(count)]


def add_requests(engine: Any, prompts: Sequence[Any], name: str, tokens: int) -> list[str]:
    """Add a request of at most `tokens` tokens for each prompt. Returns the requests' names, which begin with
    `name`."""
    from vllm import SamplingParams

    names = [f"{name}-{i}" for i in range(len(prompts))]
    params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for i, prompt in enumerate(prompts):
        params = params.clone()
        params.seed = i
        engine.add_request(names[i], prompt, params)
    return names


def timed_combination(
    engine: Any, runner: "Runner", prompts: Sequence[Any], drafts: int, name: str, tokens: int, count: int
) -> list[list[float]]:
    """Time `count` passes of these prompts with `drafts` random drafted tokens each (RandomDrafter drafts), and drop
    the requests, which may take `tokens` tokens. Returns the rows of timed_passes."""
    from das.budget.policies import Fixed, NoDrafts

    proposer = runner.flights.proposer
    assert proposer is not None
    proposer.draft_round.budget = Fixed(drafts) if drafts else NoDrafts()
    names = add_requests(engine, prompts, name, tokens)
    rows = timed_passes(engine, runner, len(prompts), drafts, count)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return rows


def timed_passes(engine: Any, runner: "Runner", live: int, drafts: int, count: int) -> list[list[float]]:
    """Time `count` passes in which all `live` requests decode and each verifies `drafts` drafted tokens, each behind
    other such passes: from the end of one to the end of the next.

    Returns a row for each: live requests, tokens in the pass, tokens of context, seconds. Raises RunFailed if the
    responses end before.
    """
    meter, wanted, contexts = runner.flights.meter, (live, live * (1 + drafts)), list[int]()
    first = len(meter.step_live)
    rows: list[list[float]] = []
    while len(rows) < WARM_UP + count:
        if not engine.has_unfinished_requests():
            raise RunFailed(f"responses ended before {count} passes of {live} requests with {drafts} drafts were timed")
        engine.step()
        context = sum(r.prompt + len(r.output_token_ids) for r in runner.flights.requests.known.values())
        ends = meter.step_time_s[first:]
        contexts += [context] * (len(ends) - len(contexts))  # with asynchronous scheduling passes are counted later
        full = [pair == wanted for pair in zip(meter.step_live[first:], meter.step_tokens[first:], strict=True)]
        rows = [[*wanted, contexts[i], ends[i] - ends[i - 1]] for i in range(1, len(full)) if full[i] and full[i - 1]]
    return rows[WARM_UP : WARM_UP + count]
