"""Roll out recorded responses with an engine: its verifier emits them in place of what it samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed, roll_out
from das.errors import EngineError
from experiments.simulate.workload import Workload


@dataclass(frozen=True)
class ForcedRollout:
    """A request to roll out recorded responses. end: the token that ends every response, and occurs nowhere else."""

    work: Workload
    end: int
    live: int  # requests at once; the others wait. The drafter keeps a separate history for each such number
    epoch: int  # 1, 2 ...


def set_seats(llm: Any, live: int) -> None:
    """Let `live` requests run at once, at most as many as the engine was built for. No request may be running.

    Raises EngineError if vLLM is too old for it.
    """
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    for name in ("max_num_active_reqs", "max_num_running_reqs"):  # the second: vLLM up to 0.27
        if hasattr(scheduler, name):
            setattr(scheduler, name, live)
            return
    raise EngineError("forced rollouts need vLLM's Scheduler.max_num_active_reqs: install a newer vLLM")


def as_recorded(responses: Sequence[Sequence[int]], work: Workload, only_lengths: bool = False) -> bool:
    """Return whether the responses equal the recorded ones. only_lengths: compare only their numbers of tokens."""
    if only_lengths:
        return [len(response) for response in responses] == work.lengths.tolist()
    return list(responses) == [work.response(i).tolist() for i in range(len(work))]


def roll_out_forced(llm: Any, asked: ForcedRollout, run_seed: int, keyed: bool, logprobs: int | None = None) -> Rollout:
    """Roll out the recorded responses. keyed: whether das verifies, so that the recorded tokens can be emitted.
    logprobs: as in SamplingParams; TRL asks for 0.

    Unmodified vLLM only emits the recorded number of tokens. Without drafts the time of a pass does not depend on its
    tokens. To emit the recorded tokens, vLLM would need a logits processor, which would add to its time.
    """
    from vllm import SamplingParams

    from das.engine.patches.front_end import let_force
    from das.verify.admission import FORCED_KEY
    from experiments.training.stock import roll_out_stock

    work = asked.work
    names = [f"{asked.live}/{asked.epoch}/{i}" for i in range(len(work))]
    responses = {name: work.response(i).tolist() for i, name in enumerate(names)}
    seeds = [request_seed(run_seed, asked.epoch, i) for i in range(len(work))]
    remembered = {}
    for i, name in enumerate(names):
        if (sampling := work.sampling_of(i)) is not None and sampling.seed is not None:
            remembered[name] = sampling.distributions.rows(work.response(i))
            seeds[i] = sampling.seed

    class ForcedRequest(RolloutRequest):
        def parameters(self) -> list[Any]:
            parameters = super().parameters()
            for (name, response), params in zip(responses.items(), parameters, strict=True):
                if keyed:
                    params.extra_args = {**params.extra_args, FORCED_KEY: name}
                else:
                    params.max_tokens = len(response)
            return parameters

    # The limit is the same for all, so that the budget cannot learn the length of a response. The end token ends it.
    ending = {"max_tokens": int(work.lengths.max()), "stop_token_ids": [asked.end]} if keyed else {"ignore_eos": True}
    request = ForcedRequest(
        prompts_of(work),
        SamplingParams(temperature=1.0, logprobs=logprobs, **ending),
        work.problems,
        seeds=seeds,
        step=asked.epoch,
        next_history_tick=asked.epoch,
    )
    if not keyed:
        return roll_out_stock(llm, request, seats=asked.live)[1]
    let_force(llm)
    llm.collective_rpc("das_force", args=(responses, remembered))
    return roll_out(llm, request)[1]


def prompts_of(work: Workload) -> Sequence[Any]:
    """Make up a prompt for each response. Responses to the same problem share a prompt; other problems have others."""
    number = {problem: i for i, problem in enumerate(dict.fromkeys(work.problems))}
    return [{"prompt_token_ids": [number[problem], *range(1, work.prompt)]} for problem in work.problems]
