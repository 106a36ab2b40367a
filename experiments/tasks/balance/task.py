"""task=balance: rollouts on several simulated engines. Which placement, what if engines die, and whose history?

task.parts:
placement  lengths alone, at full size, without speculation: everything placed at the start, or while the rollout runs
           by the Dispatcher that the cluster uses (das/cluster/dispatcher.py); by true lengths (the ideal) or by
           lengths predicted from earlier epochs (what is possible)
disturbed  the same with many engines of which some die, are replaced, join amid the rollout or are slow
history    what an engine must know of other engines' responses; texts, with the real drafter and budget

result.json: a list of rows for each part (docs/metrics.md). engines.jsonl: how many live requests each engine had when
in the last disturbed rollout; timeline.png shows it.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis.timeline_figure import idle_share, longest_rollout, timeline_figure
from das.replay.times import Times
from experiments.recorded.chains_of_thought import chains_of_thought
from experiments.recorded.latency_files import chosen_form
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.tasks.balance.disturbed import disturbed
from experiments.tasks.balance.histories import HISTORIES, histories
from experiments.tasks.balance.placements import placements

PARTS = ("placement", "disturbed", "history")


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Simulate the parts; print a line for each case, write result.json and the figure."""
    task = config.task
    check(task)
    form, source = chosen_form(task.latency, str(task.gpu), str(task.model))
    recorded = chains_of_thought(Path(task.traces), int(task.problems))
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    progress.note(f"time of a pass: {source}")
    times = Times(form)
    result: dict[str, Any] = {}
    if "placement" in task.parts:
        result["placement"] = placements(task, recorded, times, progress)
    if "disturbed" in task.parts:
        result["disturbed"], events = disturbed(task, recorded, times, progress)
        run_folder.add_engines(1, events)
        timeline_figure(longest_rollout(run_folder.path), run_folder.path / "timeline.png")
        progress.note(f"engines idled {idle_share(events):.1%} of the time: {run_folder.path / 'timeline.png'}")
    if "history" in task.parts:
        result["history"] = histories(task, plain(config.budget), recorded, times, progress)
    progress.note(f"result: {run_folder.write_result(result)}")


def check(task: DictConfig) -> None:
    """Raise UserError for what cannot be simulated."""
    for part in task.parts:
        if part not in PARTS:
            raise UserError(f"task.parts: {part} is not one of {', '.join(PARTS)}")
    at_least_one(task, "engines", "batch", "group", "epochs", "steps")
    at_least_one(task, "disturbed_engines", "disturbed_slots", "disturbed_batch")
    at_least_one(task, "history_engines", "history_batch", "history_group")
    for history in task.history:
        if history not in HISTORIES:
            raise UserError(f"task.history={history}: choose of {', '.join(HISTORIES)}")
    if min(task.max_num_seqs, default=0) < 1:
        raise UserError(f"task.max_num_seqs={list(task.max_num_seqs)}: an engine decodes at least 1 request at once")
    most = max(0, int(task.disturbed_engines) // 2 - 1)
    if not 0 <= task.disturbed <= most:
        raise UserError(
            f"task.disturbed={task.disturbed}: so many engines die and so many are slow; choose 0 to {most} of "
            f"task.disturbed_engines={task.disturbed_engines}"
        )
    if task.margin < 0 or task.slow_factor < 1 or task.restart_s < 0:
        raise UserError("task.margin and task.restart_s are at least 0, task.slow_factor is at least 1")
