"""Simulate recorded arms with the engine, drafter, budget and order of requests of their configs, on any machine."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis import read
from das.drafter import make_drafter
from das.drafter.options import DEFAULTS
from das.engine.build import EngineSettings
from das.engine.methods import find_method
from das.trl.dataset_rows import history_tick
from experiments.harness.engine import make_schedule
from experiments.harness.foreign import own_classes, refuse_environment
from experiments.run.errors import reading
from experiments.run.plain import plain
from experiments.settings.config import problems_per_step
from experiments.simulate.arms import Arm
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.latency_files import chosen_form
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.scale import CostScaled
from experiments.simulate.times import Form, Times
from experiments.simulate.workload import Workload

GPU, MODEL = "H100", "7B"
MOST_TOKENS = 500_000  # tokens of all responses; to simulate 100,000 of them with drafts takes some seconds
DOUBT = 1.3  # in the pessimistic case a drafted token takes this many times as long


def arm_config_of(path: Path) -> DictConfig:
    """Read the config that the arm in this folder recorded. Raises UserError for a config without an arm, or one that
    asks for more than settings, such as the environment."""
    with reading(path / "config.yaml"):
        config = OmegaConf.load(path / "config.yaml")
        refuse_environment(config)
        if config.arm.method is None:  # also raises if there is no arm
            raise ValueError("arm.method is empty")
        assert isinstance(config, DictConfig)
        return config


def can_be_replayed(config: DictConfig) -> bool:
    """Return whether experiments/simulate can simulate an arm with this recorded config. Classes of the user's that
    only the config names are not loaded."""
    return find_method(config.arm.method).simulated and not own_classes(config)


def simulated_arm(settings: EngineSettings) -> Arm:
    """Return the simulated arm that drafts as the settings say. Raises ValueError for a method that cannot be
    simulated."""
    if not settings.row.simulated:
        raise ValueError(f"an arm drafts with {settings.method}, which cannot be simulated")
    if not settings.row.drafts:
        return Arm()
    return Arm(settings.budget, partial(make_drafter, settings.drafter))


def replay_arm(works: list[Workload], times: Times, config: DictConfig) -> list[Step]:
    """Simulate the steps of an arm with the engine, drafter, budget and order of requests of its config."""
    drafter = plain(config.drafter)
    unit = drafter.pop("unit")
    settings = EngineSettings(
        "recorded",
        config.arm.method,
        drafter=drafter,
        budget=plain(config.arm.get("budget") or config.budget),
    )
    engine = simulated_arm(settings).engine(
        times, int(config.engine.max_num_seqs), int(config.trainer.max_completion_length)
    )
    per_step = problems_per_step(config.trainer, config.engine.processes)
    schedule = make_schedule(config.schedule)
    steps = []
    for i, work in enumerate(works):
        order = list(range(len(work))) if schedule is None else schedule.order(work.problems)
        tick = history_tick(unit, i + 1, config.data.problems, per_step)
        steps.append(simulate_rollout(work, [engine], [order], tick))
        if schedule is not None:
            schedule.observe(work.problems, work.lengths.tolist())
    return steps


def tokens_only(works: Sequence[Workload], drafter: Mapping[str, Any]) -> str:
    """Return a line for the user if this drafter remembers distributions, and rollouts were recorded without them.

    drafter: options of HistoryDrafter. Empty: there is nothing to say.
    """
    if drafter.get("remember", DEFAULTS.remember) != "distributions":
        return ""
    known = [work.sampling_of(i) is not None for work in works for i in range(len(work))]
    if all(known):
        return ""
    return (
        f"{known.count(False)} of {len(known)} recorded responses have no distributions of this policy's tokens: das "
        "drafts from their tokens alone"
    )


def derived_ratios(arms: dict[str, Path]) -> dict[str, Any]:
    """Simulate the arms as if the policy were a 7B on an H100 that gave the same responses. Returns each arm's rollout
    time divided by that of the first arm.

    arms: name -> folder. Arms that cannot be replayed are left out. The result is empty if the first arm drafts
    or cannot be simulated, if several processes rolled out, or if responses have more than MOST_TOKENS tokens. The
    times of passes are not measured but derived from the GPU's data sheet. Drafting takes the time that the run
    measured. In `ratio_to_none_dearer` drafted tokens are as slow as is plausible.
    """
    configs = {name: arm_config_of(path) for name, path in arms.items()}
    baseline = next(iter(arms))
    rows = read.metrics(arms[baseline])
    method = find_method(configs[baseline].arm.method)
    if method.drafts or not can_be_replayed(configs[baseline]) or configs[baseline].engine.processes > 1:
        return {}
    if sum(row["tokens"] for row in rows) > MOST_TOKENS:
        return {}
    form, source = chosen_form(None, GPU, MODEL)
    dear = CostScaled(form, DOUBT)
    baseline_s = replayed_seconds(read_rollouts(arms[baseline]), form, configs[baseline], arms[baseline])
    ratios: dict[str, dict[str, float]] = {"ratio_to_none": {}, "ratio_to_none_dearer": {}}
    for name, config in configs.items():
        if name != baseline and can_be_replayed(config):
            works = read_rollouts(arms[name])  # all arms have the same responses, but not the same distributions
            for key, prices in (("ratio_to_none", form), ("ratio_to_none_dearer", dear)):
                ratios[key][name] = replayed_seconds(works, prices, config, arms[name]) / baseline_s
    return {f"{GPU.lower()}_{MODEL.lower()}": {**ratios, "source": source}}


def replayed_seconds(works: list[Workload], form: Form, config: DictConfig, folder: Path) -> float:
    """Simulate all rollouts of an arm. Returns their seconds.

    form: predicts the time of a pass. folder: the arm's folder, with the measured time of drafting.
    """
    rows = read.metrics(folder)
    drafting = sum(row["draft_s"] for row in rows) / sum(row["passes"] for row in rows)
    steps = replay_arm(works, Times(form, draft_request=drafting), config)
    return sum(step.rollout_s for step in steps)
