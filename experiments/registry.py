"""Every task that `python run.py task=NAME` runs: its name, its module, one line of help, an example, a smoke run.

`python run.py --help`, the error for an unknown task and docs/commands.md are made from this list.
tests/experiments/smoke_tasks.py makes the smoke runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TINY = "setting=maths_smoke"  # two training steps of one problem x 4 short responses


@dataclass(frozen=True)
class Task:
    """`module.run(config, overrides, folder)` does the task's work. Its settings are in configs/task/NAME.yaml."""

    name: str
    module: str
    help: str
    example: str  # what to type after `python run.py`
    # Settings of a run of seconds that shows that the task works. Two names in braces are filled in:
    # {compare} is the folder of the smoke run of task=compare, which therefore comes first;
    # {made} is a folder with made-up recorded rollouts (traces/, lengths/) and problem sets (problems/).
    smoke: tuple[str, ...]

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
            (TINY,),
        ),
        Task(
            "train",
            "experiments.tasks.train",
            "train one arm alone, on one or several processes",
            "task=train arm=das",
            (TINY,),
        ),
        Task(
            "rollout",
            "experiments.tasks.rollout",
            "roll out without training: the policy stays the same, the history grows",
            "task=rollout arm=das task.steps=12",
            (TINY, "task.steps=2"),
        ),
        Task(
            "evaluate",
            "experiments.tasks.evaluate",
            "sample a policy on a problem set; print pass@k with confidence intervals",
            "task=evaluate policy.path=DIR data=math500",
            (TINY, "task.problems=4", "task.samples=2"),
        ),
        Task(
            "force",
            "experiments.tasks.force",
            "roll out recorded responses with the real engine: what does each arm cost for real text?",
            "task=force task.rollouts=../shared/data/traces/areal_deepscaler_base.jsonl.gz",
            (
                "task.rollouts={made}/traces/rg_llama3b_rl.jsonl.gz",
                "task.shape=tiny",
                "task.live=[4,2]",
                "task.siblings=2",
                "task.epochs=2",
                "task.tokens=400",
                "task.arms=[none,stock,das]",
            ),
        ),
        Task(
            "audit",
            "experiments.tasks.audit",
            "check exactness on this machine: count the tokens and sequences that agree with and without drafts",
            "task=audit",
            # Without level 3, which is the smoke run of task=compare.
            (TINY, "task.draws=20000", "task.steps=2", "task.train_steps=0"),
        ),
        Task(
            "policy",
            "experiments.tasks.policy",
            "make the small policy; hold its rollouts against those of real models",
            "task=policy",
            (TINY, "task.problems=4", "task.samples=8"),
        ),
        # Reproduce the papers.
        Task(
            "reproduce",
            "experiments.tasks.reproduce",
            "make every figure, table and ablation, with the papers' numbers beside ours",
            "task=reproduce",
            # One paper's replay. `make smoke` runs all experiments, with profile=smoke.
            (
                "paper=das",
                "task.traces={made}/traces",
                "task.problems=2",
                "task.maths_steps=10",
                "task.maths_batch=2",
                "task.code_steps=2",
                "task.ablation_problems=2",
                "task.window_problems=2",
                "task.window_epochs=3",
                "task.similarity_problems=2",
            ),
        ),
        Task(
            "experiment",
            "experiments.tasks.experiment",
            "make one figure, table or ablation of configs/experiment",
            "experiment=das_fig12",
            ("experiment=das_fig12", "profile=smoke"),
        ),
        # Simulate rollouts at any scale.
        Task(
            "replay",
            "experiments.tasks.replay",
            "replay a run's recorded rollouts; compare predicted and measured rollout time of each arm",
            "task=replay task.run=outputs/compare/DATE",
            ("task.run={compare}",),
        ),
        Task(
            "advise",
            "experiments.tasks.advise.task",
            "estimate whether speculation pays for your own recorded rollouts; write a page with the answer",
            "task=advise task.rollouts=PATH task.gpu=H100 task.model=7B",
            ("task.rollouts={compare}",),
        ),
        Task(
            "balance",
            "experiments.tasks.balance.task",
            "simulate many engines: placement by predicted lengths, deaths and joins, whose history",
            "task=balance",
            (
                "task.traces={made}/traces",
                "task.problems=2",
                "task.engines=2",
                "task.max_num_seqs=[4]",
                "task.batch=6",
                "task.group=4",
                "task.epochs=2",
                "task.steps=1",
                "task.disturbed=1",
                "task.disturbed_engines=4",
                "task.disturbed_batch=6",
                "task.history_engines=2",
                "task.history_batch=4",
            ),
        ),
        Task(
            "calibrate",
            "experiments.tasks.calibrate",
            "measure the time of a decode pass and fit the latency models to it",
            "task=calibrate",
            (TINY, "task.live=[1,4]", "task.drafts=[0,2,4]", "task.passes=4", "task.rounds=1"),
        ),
        Task(
            "calibrate_torch",
            "experiments.tasks.calibrate_torch",
            "measure the same for random weights of a model's shape with torch alone, without vLLM",
            "task=calibrate_torch task.model=8B",
            (
                "task.model=tiny",
                "task.device=cpu",
                "task.live=[1,4]",
                "task.drafts=[0,2,4]",
                "task.contexts=[16,64]",
                "task.passes=4",
            ),
        ),
        Task(
            "latency_tables",
            "experiments.tasks.latency_tables",
            "write the latency tables that are derived from data sheets",
            "task=latency_tables",
            ("task.tables={made}/latency_tables",),
        ),
        # Benchmarks.
        Task(
            "bench_budgets",
            "experiments.bench.budgets.task",
            "time the budget policies against each other at 8, 32 and 64 live requests",
            "task=bench_budgets",
            (
                TINY,
                "task.live=[4]",
                "task.problems=1",
                "task.steps=2",
                "task.only=[marginal,fixed_2]",
                "task.hopeless=false",
                "task.cost_live=[4]",
            ),
        ),
        Task(
            "bench_drafter",
            "experiments.bench.drafter",
            "compare the history drafter with arctic-inference: tokens per pass, cost, memory, calibration",
            "task=bench_drafter 'task.traces=[a.jsonl.gz]'",
            # On generated text. arctic-inference joins where it is installed (make peers).
            (
                "task.problems=2",
                "task.group=2",
                "task.sizes=[20000]",
                "task.array_sizes=[2000]",
                "task.batches=[1,4]",
                "task.min_probs=[0.2]",
            ),
        ),
        Task(
            "bench_lengths",
            "experiments.bench.lengths",
            "measure how well response lengths are predicted",
            "task=bench_lengths",
            ("task.traces={made}/lengths",),
        ),
        Task(
            "bench_prices",
            "experiments.bench.prices.task",
            "compare a budget with an oracle on made-up prices: lines, knees, stairs, noise, drift, bursts",
            "task=bench_prices",
            ("task.curves=5", "task.live=[4]", "task.tokens=60", "task.replaced=[0]"),
        ),
        Task(
            "bench_replay",
            "experiments.bench.replay",
            "time the replay of the paper's maths step: 2,048 responses on 8 engines",
            "task=bench_replay",
            (
                "task.traces={made}/traces",
                "task.problems=2",
                "task.engines=2",
                "task.max_num_seqs=8",
                "task.batch=4",
                "task.group=4",
            ),
        ),
        Task(
            "bench_rewards",
            "experiments.bench.rewards",
            "check the rewards on whole problem sets; time the sandbox",
            "task=bench_rewards data=programs reward=code",
            (
                "data=programs",
                "reward=code",
                "task.problems={made}/problems",
                "task.permutations=1",
                "task.overhead=8",
            ),
        ),
        Task(
            "bench_model_drafters",
            "experiments.bench.model_drafters",
            "measure how much of a policy's text drafters that are models draft right, coupled and not",
            "task=bench_model_drafters",
            (
                TINY,
                "task.problems=2",
                "task.samples=2",
                "task.max_tokens=24",
                "task.temperatures=[1.0]",
                "task.drafters=[w8,w4]",
            ),
        ),
        Task(
            "bench_self_draft",
            "experiments.bench.budgets.task",
            "measure where self-drafts pay: always, with the toggle, and within a budget, by live requests",
            "task=bench_self_draft trainer.num_generations=1 trainer.max_completion_length=160",
            (
                TINY,
                "task.shape=tiny",
                "task.live=[1,2]",
                "task.steps=2",
                "trainer.num_generations=1",
                "trainer.max_completion_length=24",
            ),
        ),
        Task(
            "bench_dispatch",
            "experiments.bench.dispatch",
            "measure what placing requests on many engines costs the driver",
            "task=bench_dispatch",
            ("task.engines=2", "task.batch=4", "task.group=2", "task.max_num_seqs=[2]", "task.repeats=1"),
        ),
        Task(
            "bench_sampler",
            "experiments.bench.sampler",
            "measure what exactness costs: keyed sampling and verification against vLLM's own",
            "task=bench_sampler",
            (
                TINY,
                "task.vocabularies=[64]",
                "task.batches=[2]",
                "task.repeats=2",
                "task.rounds=1",
                "task.steps=8",
            ),
        ),
        Task(
            "bench_synthesis",
            "experiments.bench.synthesis",
            "compare synthetic workloads with the recorded traces that they are made from",
            "task=bench_synthesis",
            (
                "task.traces=[{made}/traces/rg_llama3b_rl.jsonl.gz]",
                "task.problems=2",
                "task.responses=16",
                "task.group=4",
                "task.seeds=1",
            ),
        ),
        # Robustness.
        Task(
            "check_gpu",
            "experiments.tasks.check_gpu",
            "check exactness, times and memory on a GPU in a quarter of an hour; write a report",
            "task=check_gpu",
            # Two parts of fifteen; tests/experiments/tasks/test_check_gpu.py runs all.
            ("task.device=cpu", "task.parts=[memory,self_draft]", "task.folder={made}/check_gpu"),
        ),
        Task(
            "compatibility",
            "experiments.tasks.compatibility",
            "compare what das relies on with the sources of many versions of vLLM; write docs/compatibility.md",
            "task=compatibility",
            ("task.wheels=[]", "task.page={made}/compatibility.md"),  # the installed vLLM alone: no download
        ),
        Task(
            "kill_test",
            "experiments.tasks.kill_test",
            "kill runs at random points and check that they resume bit for bit",
            "task=kill_test",
            # One stop of six; the settings of the run that is killed go before the user's, which win.
            ("task.runs=1", "task.kinds=[run]", TINY, "trainer.max_steps=4", "checkpoint.every=1"),
        ),
        Task(
            "fault_test",
            "experiments.tasks.fault_test",
            "strike the engines of a cluster at random and check that the run goes on bit for bit",
            "task=fault_test cluster=ray",
            # One fault of twenty.
            ("task.faults=1", "task.kinds=[kill]", "cluster=ray", TINY, "trainer.max_steps=2", "checkpoint.every=1"),
        ),
        Task(
            "soak",
            "experiments.tasks.soak",
            "train for hours in small steps; check that memory, files, processes and step time stay constant",
            "task=soak",
            (TINY, "checkpoint.every=0", "task.minutes=0.5", "task.warm_up_minutes=0"),
        ),
    )
}
