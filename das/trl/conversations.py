"""Rollouts that have several turns: TRL calls tools, then lets the policy continue, with fewer rows in each turn.

Then several requests make one response. Each request must know its row: its seed is a function of (row, turn) and
must not depend on which other rows continue, and its problem must stay that of the row. TRL's loop passes prompts on
without their rows. So the prompts of its first turn become `RowTokens`, which keep their row when TRL appends to them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from das.engine.rollouts.report import Finished, RolloutReport, added
from das.engine.rollouts.rollout import Rollout
from das.general.errors import EngineError


class RowTokens(list[int]):
    """The token ids of a row's conversation. If tokens are appended with +, the result belongs to the same row."""

    def __init__(self, tokens: Sequence[int], row: int):
        super().__init__(tokens)
        self.row = row

    def __add__(self, tokens: Any) -> "RowTokens":  # type: ignore[override]  # TRL appends token ids only
        return RowTokens(super().__add__(tokens), self.row)


@dataclass(frozen=True)
class Turn:
    """One turn of a rollout: `rollout.finished[i]` continues row `rows[i]`."""

    rows: Sequence[int]
    rollout: Rollout


def follow_turns(trainer: Any) -> None:
    """From now on, tell the backend of a trainer with tools which row each request belongs to, and when the last turn
    is over.

    Raises EngineError with a one-line message if das cannot follow the turns of this trainer's rollouts.
    """
    if getattr(trainer, "rollout_func", None):
        raise EngineError(
            "rollout_func calls the engine itself, so das cannot tell which row, seed and problem a request belongs "
            'to: use tools or environment_factory, or call das.speculate("off")'
        )
    if not getattr(trainer, "tools", None):
        return
    if trainer.args.vllm_mode != "colocate" or trainer.args.vllm_tensor_parallel_size > 1:
        raise EngineError(
            "tools: ranks that share an engine would wait in vain for one whose rows have all ended: set "
            'vllm_mode="colocate" and vllm_tensor_parallel_size=1'
        )
    if trainer.vllm_generation.engines.of_all_ranks and trainer.accelerator.num_processes > 1:
        raise EngineError(
            "tools: ranks that share a cluster's engines would wait in vain for one whose rows have all ended: launch "
            "one process, or go without cluster="
        )
    if trainer.args.vllm_enable_sleep_mode and trainer.accelerator.num_processes > 1:
        raise EngineError(
            "tools: with sleep mode TRL syncs weights in every turn, and ranks would wait in vain for one whose rows "
            "have all ended: set vllm_enable_sleep_mode=False, or launch one process"
        )
    trainer._tool_call_loop = functools.partial(_loop_with_rows, trainer._tool_call_loop, trainer.vllm_generation)


def _loop_with_rows(original: Callable[..., Any], generation: Any, prompts: Any, prompt_ids: Any, *rest: Any) -> Any:
    """Call TRL's `_tool_call_loop`, which generates all turns after the first, with prompts that keep their rows."""
    results = original(prompts, [RowTokens(ids, row) for row, ids in enumerate(prompt_ids)], *rest)
    generation.finish_turns()
    return results


def conversation_rows(prompts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the row of each prompt of a turn after the first. Raises EngineError if TRL did not pass the rows on."""
    rows = [getattr(prompt["prompt_token_ids"], "row", None) for prompt in prompts]
    if None in rows:
        raise EngineError("TRL's tool loop has changed: its prompts have lost their rows; use TRL 1.13 to 1.16")
    return cast(list[int], rows)


def joined(turns: Sequence[Turn], end: RolloutReport) -> Rollout:
    """Returns one rollout for all turns: one response for each row, with the tokens that the policy generated for it.

    end: the engines' report about their work after the last turn. Times and costs are summed over turns. Its field
    `turns` has the number of tokens of each turn. Time between turns, in which tools run, is not counted.
    """
    first = turns[0].rollout
    of_rows: list[list[Finished]] = [[] for _ in first.finished]
    report = RolloutReport()
    began_s = 0.0
    for turn in turns:
        rollout = turn.rollout
        for row, finished in zip(turn.rows, rollout.finished, strict=True):
            of_rows[row].append(replace(finished, last_s=began_s + finished.last_s))
        step_time_s = [began_s + time_s for time_s in rollout.report.step_time_s]
        report = added(report, replace(rollout.report, step_time_s=step_time_s))
        began_s += rollout.rollout_s
    return Rollout(first.step, [_row(*turns) for turns in of_rows], began_s, added(report, end))


def _row(*turns: Finished) -> Finished:
    """Returns the response of a row. turns: those of its turns."""
    predicted = [turn.predicted_length for turn in turns if turn.predicted_length is not None]
    return replace(
        turns[-1],
        passes=sum(turn.passes for turn in turns),
        drafted=sum(turn.drafted for turn in turns),
        first_s=turns[0].first_s,
        tokens=[token for turn in turns for token in turn.tokens],
        logprobs=None,
        predicted_length=sum(predicted) if predicted else None,
        engine=turns[0].engine,
        turns=[len(turn.tokens) for turn in turns],
        emitted=_emitted(turns),
        distributions=None,  # each turn has a seed of its own, and a replay takes a response for one request
        seed=None,
    )


def _emitted(turns: Sequence[Finished]) -> list[int] | None:
    """Returns the tokens that each pass of a row emitted, over all turns; None if nothing was drafted."""
    if all(turn.emitted is None for turn in turns):
        return None
    return [count for turn in turns for count in ([1] * turn.passes if turn.emitted is None else turn.emitted)]
