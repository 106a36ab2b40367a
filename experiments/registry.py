"""Every task that `python run.py task=NAME` runs: its name, its module, one line of help, an example.

`python run.py --help`, the error for an unknown task and docs/commands.md are made from this list.
tests/experiments/smoke_tasks.py has a run of seconds of each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Task:
    """`module.run(config, overrides, folder)` does the task's work. Its settings are in configs/task/NAME.yaml."""

    name: str
    module: str
    help: str
    example: str  # what to type after `python run.py`

    def load(self) -> Callable[..., Any]:
        """Import the module. Tasks import vLLM and TRL, which takes seconds, so only the chosen one is imported."""
        run: Callable[..., Any] = import_module(self.module).run
        return run


TASKS = {
    task.name: task
    for task in (
        # Train and roll out.
        Task(
            "compare",
            "experiments.tasks.compare",
            "train arms (no drafts, DAS ...) on identical work; print the table and the identity verdict",
            "arms=[none,ngram,das]",
        ),
        Task(
            "train",
            "experiments.tasks.train",
            "train one arm alone, on one or several processes",
            "task=train arm=das",
        ),
        Task(
            "rollout",
            "experiments.tasks.rollout",
            "roll out without training: the policy stays the same, the history grows",
            "task=rollout arm=das task.steps=12",
        ),
        Task(
            "evaluate",
            "experiments.tasks.evaluate",
            "sample a policy on a problem set; print pass@k with confidence intervals",
            "task=evaluate policy.path=DIR data=math500",
        ),
        Task(
            "force",
            "experiments.tasks.force",
            "roll out recorded responses with the real engine: what does each arm cost for real text?",
            "task=force task.rollouts=../shared/data/traces/areal_deepscaler_base.jsonl.gz",
        ),
        Task(
            "audit",
            "experiments.tasks.audit",
            "check exactness on this machine: count the tokens and sequences that agree with and without drafts",
            "task=audit",
        ),
        Task(
            "policy",
            "experiments.tasks.policy",
            "make the small policy; hold its rollouts against those of real models",
            "task=policy",
        ),
        # Reproduce the papers.
        Task(
            "reproduce",
            "experiments.tasks.reproduce",
            "make every figure, table and ablation, with the papers' numbers beside ours",
            "task=reproduce",
        ),
        Task(
            "experiment",
            "experiments.tasks.experiment",
            "make one figure, table or ablation of configs/experiment",
            "experiment=das_fig12",
        ),
        # Simulate rollouts at any scale.
        Task(
            "replay",
            "experiments.tasks.replay",
            "replay a run's recorded rollouts; compare predicted and measured rollout time of each arm",
            "task=replay task.run=outputs/compare/DATE",
        ),
        Task(
            "advise",
            "experiments.tasks.advise.task",
            "estimate whether speculation pays for your own recorded rollouts; write a page with the answer",
            "task=advise task.rollouts=PATH task.gpu=H100 task.model=7B",
        ),
        Task(
            "calibrate",
            "experiments.tasks.calibrate",
            "measure the time of a decode pass and fit the latency models to it",
            "task=calibrate",
        ),
        Task(
            "calibrate_torch",
            "experiments.tasks.calibrate_torch",
            "measure the same for random weights of a model's shape with torch alone, without vLLM",
            "task=calibrate_torch task.model=8B",
        ),
        # Benchmarks.
        Task(
            "bench_budgets",
            "experiments.bench.budgets.task",
            "time the budget policies against each other at 8, 32 and 64 live requests",
            "task=bench_budgets",
        ),
        Task(
            "bench_drafter",
            "experiments.bench.drafter",
            "compare the history drafter with arctic-inference: tokens per pass, cost, memory, calibration",
            "task=bench_drafter 'task.traces=[a.jsonl.gz]'",
        ),
        Task(
            "bench_model_drafters",
            "experiments.bench.model_drafters",
            "measure how much of a policy's text drafters that are models draft right, coupled and not",
            "task=bench_model_drafters",
        ),
        Task(
            "bench_self_draft",
            "experiments.bench.budgets.task",
            "measure where self-drafts pay: always, with the toggle, and within a budget, by live requests",
            "task=bench_self_draft trainer.num_generations=1 trainer.max_completion_length=160",
        ),
        Task(
            "bench_sampler",
            "experiments.bench.sampler",
            "measure what exactness costs: keyed sampling and verification against vLLM's own",
            "task=bench_sampler",
        ),
        # Robustness.
        Task(
            "check_gpu",
            "experiments.tasks.check_gpu",
            "check exactness, times and memory on a GPU in a quarter of an hour; write a report",
            "task=check_gpu",
        ),
        Task(
            "compatibility",
            "experiments.tasks.compatibility",
            "compare what das relies on with the sources of many versions of vLLM; write docs/compatibility.md",
            "task=compatibility",
        ),
        Task(
            "kill_test",
            "experiments.tasks.kill_test",
            "kill runs at random points and check that they resume bit for bit",
            "task=kill_test",
        ),
        Task(
            "fault_test",
            "experiments.tasks.fault_test",
            "strike the engines of a cluster at random and check that the run goes on bit for bit",
            "task=fault_test cluster=ray",
        ),
        Task(
            "soak",
            "experiments.tasks.soak",
            "train for hours in small steps; check that memory, files, processes and step time stay constant",
            "task=soak",
        ),
    )
}
