"""task=compare: arms on identical work; the table, the identity verdict, result.json."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from analysis import arms as arm_analysis
from analysis import figures
from experiments.harness import one_by_one, resume, setup
from experiments.harness.arms import arm_configs, arm_overrides
from experiments.harness.lock_step import run_arms
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Train every arm of `config.arms` from the same start; print and write the comparison."""
    arms = arm_configs(config, overrides)
    names = list(arms)
    for arm in arms.values():
        setup.check(arm)
    if config.task.lock_step and config.engine.processes > 1:
        raise UserError(
            f"task.lock_step=true runs all arms at once, a process each; with engine.processes="
            f"{config.engine.processes} set task.lock_step=false"
        )
    steps = int(config.trainer.max_steps)
    progress = Progress(steps, len(arms))
    lock = resume.hold(Path(folder))
    start = 0 if config.resume is None or not config.task.lock_step else go_back(arms, Path(folder), progress)
    resume.remember(Path(folder), overrides)
    run_folder = RunFolder(Path(folder), config)
    policy = setup.policy_directory(config, progress.note)
    setup.dataset(config, policy, progress.note)  # says what is wrong with the data before the arms start
    progress.note(f"starting {len(arms)} arms ({', '.join(names)}), {steps} steps each; logs and results in {folder}")
    if config.task.lock_step:
        run_arms(arms, policy, Path(folder), progress, run_folder, start)
    else:
        one_by_one.run_arms(arms, arm_overrides(config, overrides), Path(folder), progress)
    result = arm_analysis.compare_arms(Path(folder), names)
    figures.compare_figures(Path(folder), names)
    path = run_folder.write_result(result)  # the last thing: who finds it finds all
    progress.note(arm_analysis.arm_table(result))
    progress.note(arm_analysis.identity_verdict(result))
    progress.note(f"result: {path}")
    lock.close()


def go_back(arms: Mapping[str, DictConfig], folder: Path, progress: Progress) -> int:
    """Bring the comparison in `folder` back to the newest step of which all arms have a whole checkpoint; returns it.

    metrics.jsonl is put together anew: an arm may have been killed between its own and this one.
    """
    own = {folder / "arms" / name: config for name, config in arms.items()}
    step = resume.newest(own, progress.note)
    rows = [resume.rewind(path, step) for path in own]
    resume.set_metrics(folder, [row for done in zip(*rows, strict=True) for row in done])
    resume.announce(folder, step, progress)
    return step
