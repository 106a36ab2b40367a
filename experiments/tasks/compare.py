"""task=compare: train several arms on identical work, and compare their times and whether results are identical."""

from collections.abc import Mapping
from pathlib import Path

from analysis import arms as arm_analysis
from analysis import compare_page, figures, read, time_spent
from analysis.verdict import WIDTH, SoFar, boxed, verdict_lines
from das.engine.settings import BITS, EXACT, METHODS
from das.general.side_output import side_output
from experiments.arm import resume
from experiments.arm.recorded_text import is_recorded
from experiments.arm.train_arm import make_parts
from experiments.arm.validate import check, refuse_one_arm
from experiments.compare import lock_step, one_by_one
from experiments.compare.arm_configs import arm_changes, arm_configs, arm_overrides
from experiments.compare.recorded_arms import replay_errors
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from experiments.training import checkpoint


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Train every arm of the setting `arms` from the same start, and print and write the comparison."""
    path = Path(folder)
    refuse_one_arm(config, composed.overrides)
    changes = arm_changes(config.arms, config.vary)
    arms = arm_configs(composed, changes)
    for arm in arms.values():
        check(arm)
    check_stock(arms)
    in_lock_step, train_once = config.task.lock_step, config.task.train_once
    train = config.task.train and not is_recorded(config)
    check_who_trains(arms, train_once, train)
    steps = config.trainer.max_steps
    other_tokens = [name for name, arm in arms.items() if not arm.arm.row.keyed or arm.engine.exact != BITS]
    so_far = SoFar(list(arms), other_tokens, config.responses_per_step, train_once or not train)
    progress = Progress(steps, len(arms), verdict=so_far.add)
    start = 0
    if config.resume is not None and in_lock_step:
        start = resume.rewind_all({path / "arms" / name: arm for name, arm in arms.items()}, path, progress)
    resume.remember(path, composed.overrides)
    run_folder = RunFolder(path, config.resolved)
    policy = make_parts(list(arms.values()), progress.note)
    progress.note(EXACT[config.engine.exact])
    progress.note(f"starting {len(arms)} arms ({', '.join(arms)}), {steps} steps each; logs and results in {folder}")
    if in_lock_step:
        lock_step.run_arms(lock_step.Comparison(arms, policy, run_folder, start, train_once, train), progress)
    else:
        alone = {name: arm_overrides(composed.overrides, changed) for name, changed in changes.items()}
        one_by_one.run_arms(arms, alone, path, progress)
    result = arm_analysis.compare_arms(path, list(arms))
    run_folder.write_result(result)  # written now, because an error in the lines below must not lose hours of work
    folders = {name: path / "arms" / name for name in arms}
    with side_output("the error of replaying this run", progress.note):
        result["replay_error"] = replay_errors(folders)
    drawn: list[Path] = []
    with side_output("the pictures of the comparison", progress.note):
        result["time_spent"] = time_spent.of_arms(folders)
        drawn = figures.compare_figures(path, list(arms))
        drawn.append(time_spent.draw(result["time_spent"], path / "time_spent.png"))
    result_path = run_folder.write_result(result)
    page = path / "comparison.html"
    with side_output("the page of the comparison", progress.note):
        compare_page.write_comparison(page, result, drawn, {name: read.metrics(arm) for name, arm in folders.items()})
    for name in arms:
        checkpoint.keep_policy(path / "arms" / name / resume.CHECKPOINTS)
    progress.note(f"\n{arm_analysis.aligned(arm_analysis.short_table(result), WIDTH)}\n{arm_analysis.SHORT_KEY}\n")
    progress.note(boxed("verdict", verdict_lines(result)))
    progress.note(f"page: {page.absolute()}  (opens in a browser, no server needed)")
    progress.note(f"result: {result_path}")


def check_stock(arms: Mapping[str, RunConfig]) -> None:
    """Refuse two arms of unmodified vLLM, or such an arm as the baseline. Raises UserError."""
    stock = [name for name, config in arms.items() if not config.arm.row.keyed]
    plain = [name for name in stock if not arms[name].arm.speculative]
    if len(plain) > 1:
        raise UserError(f"arms={list(arms)}: {' and '.join(plain)} are both vLLM as it comes; keep one")
    if stock and next(iter(arms)) == stock[0]:
        raise UserError(f"arms={list(arms)}: {stock[0]} samples other tokens, so it cannot be the baseline")


def check_who_trains(arms: Mapping[str, RunConfig], train_once: bool, train: bool) -> None:
    """Refuse an arm that would have to learn from a training in which it takes no part, or that cannot emit recorded
    text. Raises UserError.

    train_once: only the first arm trains. train: False if nobody does.
    """
    learning = [name for name, arm in list(arms.items())[1 if train else 0 :] if arm.arm.online]
    if learning and (train_once or not train):
        who = "only the first arm trains; leave it out, or put it first" if train else "nobody trains; leave it out"
        raise UserError(f"arms={list(arms)}: {' and '.join(learning)} would learn from forward passes, and {who}")
    for name, arm in arms.items():
        if is_recorded(arm) and not arm.arm.row.forced:
            raise UserError(
                f"task.recorded: {name} drafts with a model, which cannot foresee recorded text; choose arms of the "
                f"methods {', '.join(row.name for row in METHODS.values() if row.forced)}"
            )
