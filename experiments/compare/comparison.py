"""task=compare: train several arms on identical work, and compare their times and whether results are identical.

Every arm is a change of the composed config. With the setting `vary`, every combination of the values to try becomes an
arm.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import arms as arm_analysis
from analysis import figures, read, time_spent
from analysis.arms import WIDTH, SoFar, boxed, verdict_lines
from analysis.page import write_comparison
from das.engine.settings import BITS, EXACT, METHODS
from das.general.side_output import side_output
from experiments.arm import resume
from experiments.arm.data import is_recorded
from experiments.arm.train_arm import make_parts
from experiments.arm.validate import check, refuse_one_arm
from experiments.compare.recorded_arms import replay_errors
from experiments.compare.run_arms import Comparison, run_in_lock_step, run_one_by_one
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.checked import as_typed, files_of, leaves
from experiments.settings.compose import Composed
from experiments.settings.config import METHOD, RunConfig, run_config
from experiments.training import checkpoint


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Train every arm of the setting `arms` from the same start, and print and write the comparison."""
    comparison = checked(config, composed, Path(folder))
    progress = progress_of(comparison)
    start = 0
    if config.resume is not None and config.task.lock_step:
        of_folders = {path: comparison.arms[name] for name, path in comparison.folders.items()}
        start = resume.rewind_all(of_folders, comparison.folder, progress)
    resume.remember(comparison.folder, composed.overrides)
    run_folder = RunFolder(comparison.folder, config.resolved)
    roll_out(comparison, start, progress)
    result = arm_analysis.compare_arms(comparison.folder, list(comparison.arms))
    run_folder.write_result(result)  # written now, because an error in the lines below must not lose hours of work
    page = drawn(comparison, result, progress)
    result_path = run_folder.write_result(result)
    for path in comparison.folders.values():
        checkpoint.keep_policy(path / resume.CHECKPOINTS)
    progress.note(f"\n{arm_analysis.aligned(arm_analysis.table(result, 'short'), WIDTH)}\n{arm_analysis.SHORT_KEY}\n")
    progress.note(boxed("verdict", verdict_lines(result)))
    progress.note(f"page: {page.absolute()}  (opens in a browser, no server needed)")
    progress.note(f"result: {result_path}")


def checked(config: RunConfig, composed: Composed, folder: Path) -> Comparison:
    """Make the settings of all arms. Raises UserError or EngineError if one is impossible."""
    refuse_one_arm(config, composed.overrides)
    changes = arm_changes(config.arms, config.vary)
    overrides = {name: arm_overrides(composed.overrides, changed) for name, changed in changes.items()}
    comparison = Comparison(config, arm_configs(composed, changes), overrides, folder)
    for arm in comparison.arms.values():
        check(arm)
    check_stock(comparison.arms)
    check_who_trains(comparison.arms, config.task.train_once, comparison.trains)
    return comparison


def progress_of(comparison: Comparison) -> Progress:
    """Return what prints the verdict of each step."""
    arms, config = comparison.arms, comparison.config
    other_tokens = [name for name, arm in arms.items() if not arm.arm.row.keyed or arm.engine.exact != BITS]
    given_weights = config.task.train_once or not comparison.trains
    so_far = SoFar(list(arms), other_tokens, config.responses_per_step, given_weights)
    return Progress(config.trainer.max_steps, len(arms), verdict=so_far.add)


def roll_out(comparison: Comparison, start: int, progress: Progress) -> None:
    """Make what the arms need, and run them. start: steps that are done already."""
    arms = comparison.arms
    policy = make_parts(list(arms.values()), progress.note)
    progress.note(EXACT[comparison.config.engine.exact])
    names = f"starting {len(arms)} arms ({', '.join(arms)})"
    progress.note(f"{names}, {progress.steps} steps each; logs and results in {comparison.folder}")
    if comparison.config.task.lock_step:
        run_in_lock_step(comparison, policy, start, progress)
    else:
        run_one_by_one(comparison, progress)


def drawn(comparison: Comparison, result: dict[str, Any], progress: Progress) -> Path:
    """Draw the pictures and the page of the comparison, and add to its result what they show. Returns the page. What
    fails here is a line."""
    folder, folders = comparison.folder, comparison.folders
    with side_output("the error of replaying this run", progress.note):
        result["replay_error"] = replay_errors(folders)
    pictures: list[Path] = []
    with side_output("the pictures of the comparison", progress.note):
        result["time_spent"] = time_spent.of_arms(folders)
        pictures = figures.compare_figures(folder, list(folders))
        pictures.append(time_spent.draw(result["time_spent"], folder / "time_spent.png"))
    page = folder / "comparison.html"
    with side_output("the page of the comparison", progress.note):
        rows = {name: read.metrics(path) for name, path in folders.items()}
        write_comparison(page, result, pictures, rows)
    return page


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


# ---- the settings of arms ----

Changes = Mapping[str, Any]  # settings of an arm that differ from the comparison's, by key or config group
VARIED = "das"  # `vary` varies this arm; if it is not in the comparison, the last of several arms


def arm_configs(composed: Composed, changes: Mapping[str, Changes]) -> dict[str, RunConfig]:
    """Return the settings of every arm. changes: of every arm."""
    return {name: run_config(composed.changed(changed)) for name, changed in changes.items()}


def arm_changes(names: Sequence[str], vary: Mapping[str, Any]) -> dict[str, Changes]:
    """Return arm -> its changes, in the order of `names`. With `vary`, variants replace one arm.

    Raises UserError for arms that are named twice or do not exist, and for settings that cannot be varied.
    """
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={list(names)}: name each arm once, the baseline first")
    for name in names:
        if name not in files_of("arm"):
            raise UserError(f"unknown arm {name!r}: choose from {', '.join(files_of('arm'))}")
    varied = variants(vary)
    varied_arm = VARIED if VARIED in names else names[-1]
    if varied and varied_arm == names[0]:
        raise UserError(f"arms={list(names)}: vary replaces the arm {VARIED} or else the last one; add the one to vary")
    arms: dict[str, Changes] = {}
    for name in names:
        if name != varied_arm or not varied:
            arms[name] = {"arm": name}
            continue
        for label, changed in varied.items():
            arms[label] = {"arm": name, **changed, "arm.name": label}
    return arms


def arm_overrides(overrides: Sequence[str], changes: Changes) -> list[str]:
    """Return the overrides of a command line that trains an arm alone. overrides: those of the comparison."""
    kept = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    own = [f"{key}={as_typed(value)}" for key, value in changes.items() if key != "arm.name"]
    named = [f"arm.name='{changes['arm.name']}'"] if "arm.name" in changes else []
    return [*kept, *own, *named]


def variants(vary: Mapping[str, Any]) -> dict[str, Changes]:
    """Make the variants that `vary` asks for. Returns name of a variant -> its changes.

    {"drafter": {"window": [1, 4]}} gives the arms window_1 and window_4. A list in place of a config group,
    {"budget": ["fixed", "classes"]}, gives the arms fixed and classes. Raises UserError if values are not a list, if a
    setting changes the work of an arm, or if configs/arm has an arm of that name already.
    """
    axes = []
    for key, values in leaves(vary) if vary else ():
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            raise UserError(f"vary.{key}={values}: give a list of values, such as +vary.{key}=[1,4,16]")
        if key.split(".")[0] not in METHOD or key == "engine.processes":
            raise UserError(
                f"vary.{key}: arms of one comparison do the same work, so they can differ in {', '.join(METHOD)} "
                "only, and not in engine.processes; run it once for each value: "
                f"python run.py -m {key}={','.join(map(as_typed, values))}"
            )
        axes.append([(_label(key, value), (key, value)) for value in values])
    arms: dict[str, Changes] = {}
    for combination in itertools.product(*axes):
        name = "-".join(label for label, _ in combination)
        if name in files_of("arm"):
            raise UserError(
                f"vary: an arm {name} exists already in configs/arm; vary a second setting, so that the name differs"
            )
        arms[name] = dict(change for _, change in combination)
    return arms if axes else {}


def _label(key: str, value: Any) -> str:
    """Return the part of a variant's name that stands for one setting: the key's last word and the value, or for a
    config group only the value."""
    words = f"{key.rsplit('.', 1)[1]}_{as_typed(value)}" if "." in key else as_typed(value)
    return re.sub(r"[^\w.+-]", "_", words)
