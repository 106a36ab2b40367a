"""Every task that `python run.py task=NAME` runs: its name, its module and one line of help.

`python run.py --help`, the error for an unknown task and docs/commands.md are made from this list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Task:
    """`module.run(config, overrides, folder)` does the task's work. `config` lies in configs/task/NAME.yaml."""

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
            "train arms (without drafts, with DAS ...) on identical work; print the table and the identity verdict",
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
            "audit",
            "experiments.tasks.audit",
            "check exactness on this machine: how many tokens and sequences agree with and without drafts",
            "task=audit",
        ),
        Task(
            "policy",
            "experiments.tasks.policy",
            "make the small policy; measure its accuracy and response lengths",
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
            "balance",
            "experiments.tasks.balance",
            "simulate several engines: placement by predicted lengths, shared against private history",
            "task=balance",
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
        Task(
            "latency_tables",
            "experiments.tasks.latency_tables",
            "write the latency tables that are derived from data sheets",
            "task=latency_tables",
        ),
        # Benchmarks.
        Task(
            "bench_budgets",
            "experiments.bench.budgets",
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
            "bench_lengths",
            "experiments.bench.lengths",
            "measure how well response lengths are predicted",
            "task=bench_lengths",
        ),
        Task(
            "bench_replay",
            "experiments.bench.replay",
            "time the replay of the paper's maths step: 2,048 responses on 8 engines",
            "task=bench_replay",
        ),
        Task(
            "bench_rewards",
            "experiments.bench.rewards",
            "check the rewards on whole problem sets; time the sandbox",
            "task=bench_rewards data=programs reward=code",
        ),
        Task(
            "bench_sampler",
            "experiments.bench.sampler",
            "measure what exactness costs: keyed sampling and verification against vLLM's own",
            "task=bench_sampler",
        ),
        Task(
            "bench_synthesis",
            "experiments.bench.synthesis",
            "compare synthetic workloads with the recorded traces that they are made from",
            "task=bench_synthesis",
        ),
        # Robustness.
        Task(
            "kill_test",
            "experiments.tasks.kill_test",
            "kill runs at random points and check that they resume bit for bit",
            "task=kill_test",
        ),
        Task(
            "soak",
            "experiments.tasks.soak",
            "train for hours in small steps; check that memory, files, processes and step time stay constant",
            "task=soak",
        ),
    )
}
