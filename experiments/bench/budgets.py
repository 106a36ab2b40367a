"""task=bench_budgets: which budget makes rollouts shortest?

Two engines, each in a process of its own: one without speculation, one that drafts, whose policies take turns rollout
by rollout, each with a drafter and a history of its own. All roll out the same requests with the same noise, so all
emit the same tokens, which is checked.

ratio: of summed rollout times to those of no speculation; [quartiles] of the single rollouts' ratios. computed: the
same from what the policies decided alone, every pass at the price fitted to all rollouts (base + row live + drafting +
token drafted): free of the machine's noise. cost_us: processor time of the decisions themselves, over made-up drafts.
"""

import hashlib
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from analysis.budgets_figure import budgets_figure
from das.budget import least_squares
from experiments.bench.budget_cost import cost_us
from experiments.harness.config import run_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.lock_step import expect, tell
from experiments.harness.policies import policy_directory
from experiments.harness.rollout_steps import tokenized
from experiments.run.errors import RunFailed, UserError, compose_config
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

BASELINE = "none"


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Roll out every workload with every policy; print a line a policy, write result.json and a figure."""
    task = config.task
    labels = [str(label) for label in task.only or task.policies]
    unknown = [label for label in labels if label not in task.policies]
    if unknown or not labels or BASELINE in labels:
        raise UserError(
            f"task.only={labels}: choose from {', '.join(task.policies)}; `{BASELINE}` (no speculation) is always there"
        )
    own = [override for override in overrides if not override.startswith("arm=")]
    arms = {BASELINE: compose_config([*own, "arm=none"])}
    arms |= {label: compose_config([*own, "arm=das", *task.policies[label]]) for label in labels}
    workloads = {f"live_{live}": workload(config, int(live), hopeless=False) for live in task.live}
    if task.hopeless:
        workloads["hopeless"] = workload(config, int(task.hopeless_live), hopeless=True)
    budgets = {label: engine_settings(run_config(checked), "unnamed").budget for label, checked in arms.items()}
    progress = Progress(int(task.steps), len(arms) * len(workloads))
    run_folder = RunFolder(Path(folder), config)
    costs = {label: {str(n): cost_us(budgets[label], int(n)) for n in task.cost_live} for label in labels}
    for label, cost in costs.items():
        own_cost = "   ".join(f"{live}: {us:.1f}" for live, us in cost.items())
        progress.note(f"{label:18s} processor time, us a pass by live requests: {own_cost}")
    if not workloads:
        progress.note(f"result: {run_folder.write_result({'cost_us': costs})}")
        return
    slots = max(int(w["live"]) for w in workloads.values())
    policy = policy_directory(run_config(config), progress.note)
    progress.note(f"starting 2 engines; {', '.join(arms)} on {', '.join(workloads)}; logs in {folder}")
    rows: list[dict[str, Any]] = []
    for hopeless in (False, True):
        own_workloads = {name: asked for name, asked in workloads.items() if asked["hopeless"] == hopeless}
        if own_workloads:
            answers = untrained(policy, Path(folder) / "untrained") if hopeless else policy
            engines = {
                which: _start(which, [arms[name] for name in names], names, answers, slots, Path(folder))
                for which, names in (("plain", [BASELINE]), ("drafting", labels))
            }
            for row in roll_all(engines, [*arms], own_workloads, int(task.steps), config, Path(folder), progress):
                rows.append(row)
                run_folder.add_metrics(row)
                progress.step(row)
    prices = pass_prices(rows)
    progress.note(
        "seconds a pass, a request, a drafted pass, a drafted token: " + ", ".join(f"{p:.2e}" for p in prices)
    )
    result = {name: measure([row for row in rows if row["workload"] == name], [*arms], prices) for name in workloads}
    for name, measured in result.items():
        progress.note(f"{name}:")
        for label, found in sorted(measured.items(), key=lambda item: item[1]["ratio"]):
            low, high = found["quartiles"]
            progress.note(
                f"    {label:16s}{found['ratio']:.3f} [{low:.3f}, {high:.3f}] of none   computed "
                f"{found['computed']:.3f}   tokens/pass {found['tokens_per_pass']:5.2f}   drafted "
                f"{found['drafted']:7d}   accepted {found['accepted']:7d}"
            )
    budgets_figure(result, Path(folder) / "budgets.png")
    progress.note(f"result: {run_folder.write_result({**result, 'cost_us': costs})}")


def roll_all(
    engines: dict[str, Connection],
    arms: Sequence[str],
    workloads: dict[str, dict[str, Any]],
    steps: int,
    config: DictConfig,
    folder: Path,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Rows as they come: each workload, each step, each policy in turn; the engines end with it."""
    try:
        warm_up = workload(config, int(config.trainer.num_generations), hopeless=False)
        for which, arm in (("plain", BASELINE), ("drafting", arms[1])):
            expect(engines[which], "ready", which, folder)
            tell(engines[which], (arm, "warm-up", warm_up, 0))
            expect(engines[which], "rolled", which, folder)
        if not progress.done:
            progress.start()
        for name, asked in workloads.items():
            for step in range(steps):
                turn = step % len(arms)
                rows = []
                for arm in [*arms[turn:], *arms[:turn]]:
                    which = "plain" if arm == BASELINE else "drafting"
                    tell(engines[which], (arm, name, asked, step))
                    rows.append(expect(engines[which], "rolled", which, folder))
                    yield rows[-1]
                _check_same_tokens(rows)
    finally:
        for pipe in engines.values():
            pipe.close()


def untrained(policy: str, folder: Path) -> str:
    """The same architecture and tokenizer with random weights: nearly uniform tokens, nothing to accept."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    return str(folder)


def workload(config: DictConfig, live: int, hopeless: bool) -> dict[str, Any]:
    """`live` requests a rollout, in groups of siblings; `problems` in an epoch."""
    siblings = 1 if hopeless else int(config.trainer.num_generations)
    if live < 1 or live % siblings:
        raise UserError(f"task.live: {live} requests are no multiple of trainer.num_generations={siblings}")
    return {
        "live": live,
        "siblings": siblings,
        "problems": live * int(config.task.steps) if hopeless else max(int(config.task.problems), live // siblings),
        "hopeless": hopeless,
    }


def measure(rows: Sequence[dict[str, Any]], labels: Sequence[str], prices: np.ndarray) -> dict[str, Any]:
    """Of one workload: each policy's rollout time over the baseline's, and what it drafted. prices: of pass_prices."""
    computed = {label: sum(float(prices @ _counts(row)) for row in rows if row["arm"] == label) for label in labels}
    seconds = {label: np.array([row["rollout_s"] for row in rows if row["arm"] == label]) for label in labels}
    measured = {}
    for label in labels:
        own = [row for row in rows if row["arm"] == label]
        ratios = seconds[label] / seconds[BASELINE]
        measured[label] = {
            "n": len(own),
            "rollout_s": float(seconds[label].sum()),
            "ratio": float(seconds[label].sum() / seconds[BASELINE].sum()),
            "computed": computed[label] / computed[BASELINE],
            "quartiles": [float(q) for q in np.quantile(ratios, [0.25, 0.75])],
            "median_ratio": float(np.median(ratios)),
            "tokens_per_pass": sum(row["tokens"] for row in own) / sum(row["passes"] for row in own),
            "drafted": sum(row["drafted"] for row in own),
            "accepted": sum(row["accepted"] for row in own),
        }
    return measured


def _counts(row: dict[str, Any]) -> np.ndarray:
    return np.array([row["decode_steps"], row["live_sum"], row["drafted_steps"], row["drafted"]], float)


def pass_prices(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Seconds a pass, a live request in it, a pass with drafts, a drafted token: least absolute relative errors."""
    counts, seconds = np.stack([_counts(row) for row in rows]), np.array([row["rollout_s"] for row in rows])
    weights = 1 / np.square(seconds)
    for _ in range(20):
        prices = least_squares.linear(counts, seconds, weights)
        weights = 1 / (np.square(seconds) * np.maximum(np.abs(counts @ prices / seconds - 1), 1e-3))
    return prices


def _check_same_tokens(rows: Sequence[dict[str, Any]]) -> None:
    digests = {row["arm"]: row["digest"] for row in rows}
    wrong = [arm for arm, digest in digests.items() if digest != digests[BASELINE]]
    if wrong:
        raise RunFailed(
            f"{', '.join(wrong)} emitted other tokens than {BASELINE}: python run.py task=audit tells where"
        )


def _start(
    which: str, configs: Sequence[DictConfig], labels: Sequence[str], policy: str, slots: int, folder: Path
) -> Connection:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    containers = {
        label: OmegaConf.to_container(config, resolve=True) for label, config in zip(labels, configs, strict=True)
    }
    log = folder / "arms" / which / "log.txt"
    spawn.Process(target=_engine_process, args=(containers, policy, slots, log, theirs), daemon=True).start()
    theirs.close()
    return mine


def _engine_process(containers: dict[str, Any], policy: str, slots: int, log: Path, pipe: Connection) -> None:
    """Rolls out what it is told, until the pipe closes. Output goes to its log, errors to the parent as one line."""
    with quiet_into(log):
        try:
            _serve({label: OmegaConf.create(own) for label, own in containers.items()}, policy, slots, pipe)
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            traceback.print_exc()
            tell(pipe, ("error", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"))


def _serve(configs: dict[str, DictConfig], policy: str, slots: int, pipe: Connection) -> None:
    first = next(iter(configs.values()))
    prepare_process(run_config(first))
    from vllm import SamplingParams

    from das.budget import make_budget
    from das.engine.build import build_engine
    from das.engine.rollout import request_seed, roll_out, rollout_row

    settings = {label: engine_settings(run_config(config), policy) for label, config in configs.items()}
    widest = max(settings.values(), key=lambda own: make_budget(own.budget).max_draft_tokens)
    llm = build_engine(widest, max_num_seqs=slots)
    problems_of: dict[str, list[tuple[str, Any]]] = {}
    pipe.send(("ready", None))
    while True:
        label, name, asked, step = pipe.recv()
        if label != BASELINE:
            own = {"drafter": dict(settings[label].drafter), "budget": dict(settings[label].budget)}
            llm.collective_rpc("das_use_proposer", args=(f"{name} {label}", own))
        llm.reset_prefix_cache()
        if name not in problems_of:
            data = OmegaConf.merge(first, {"data": {"problems": asked["problems"]}})
            assert isinstance(data, DictConfig)
            problems_of[name] = tokenized(run_config(data), policy)
        known, groups = problems_of[name], asked["live"] // asked["siblings"]
        batch = [
            known[i % len(known)] for i in range(step * groups, (step + 1) * groups) for _ in range(asked["siblings"])
        ]
        problems, prompts = zip(*batch, strict=True)
        params = SamplingParams(temperature=first.trainer.temperature, max_tokens=first.trainer.max_completion_length)
        seeds = [request_seed(first.seed, step, i) for i in range(len(prompts))]
        _, rollout = roll_out(
            llm, llm.generate, prompts, params, problems, seeds, step, (step + 1) * groups // len(known)
        )
        counts = {key: rollout.report[key] for key in ("live_sum", "drafted_steps")}
        digest = hashlib.sha256(repr(rollout.responses).encode()).hexdigest()
        row = {"arm": label, "workload": name, "step": step + 1, "digest": digest, **counts, **rollout_row(rollout)}
        pipe.send(("rolled", row))
