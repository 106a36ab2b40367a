"""A finished step writes its responses, its decode passes and its row of metrics into the run folder."""

from collections.abc import Sequence
from typing import Any

from das.engine.rollouts.rollout import Rollout
from experiments.run.run_folder import RunFolder


def record_step(run_folder: RunFolder, row: dict[str, Any], rollout: Rollout, rewards: Sequence[float | None]) -> None:
    """Write a step's files. The row of metrics.jsonl comes last: a step that has one is complete."""
    run_folder.add_rollout(row["step"], response_rows(rollout, rewards))
    run_folder.add_timeline(row["step"], rollout.report.timeline())
    run_folder.add_engines(row["step"], rollout.report.engines)
    run_folder.add_metrics(row)


def response_rows(rollout: Rollout, rewards: Sequence[float | None]) -> list[dict[str, Any]]:
    """One row a response: the format of recorded traces, and what the response cost."""
    responses = zip(rollout.problems, rewards, rollout.finish_reasons, rollout.responses, rollout.requests, strict=True)
    return [
        {
            "problem_id": problem,
            "run": rollout.step,
            "sample": index,
            "reward": reward,
            "finish_reason": reason,
            "response_ids": response,
            **cost.plain(),
        }
        for index, (problem, reward, reason, response, cost) in enumerate(responses)
    ]
