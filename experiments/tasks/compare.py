"""task=compare: arms on identical work; the table, the identity verdict, result.json."""

import multiprocessing
import os
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis import arms as arm_analysis
from analysis import figures
from das.engine.build import EngineError
from das.process import die_with_parent
from das.training.turns import PipeTurns
from experiments.harness import one_by_one, resume, setup
from experiments.harness.arm import quiet_into, train_arm
from experiments.harness.vary import variants
from experiments.run.errors import CONFIGS, RunFailed, UserError, compose_config
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
    result = arm_analysis.compare(Path(folder), names)
    figures.compare_figures(Path(folder), names)
    path = run_folder.write_result(result)  # the last thing: who finds it finds all
    progress.note(arm_analysis.table(result))
    progress.note(arm_analysis.verdict(result))
    progress.note(f"result: {path}")
    lock.close()


def arm_configs(config: DictConfig, overrides: list[str]) -> dict[str, DictConfig]:
    """Every arm's config, in order, the baseline first."""
    return {name: compose_config(own) for name, own in arm_overrides(config, overrides).items()}


def arm_overrides(config: DictConfig, overrides: list[str]) -> dict[str, list[str]]:
    """What makes each arm's config; settings to vary take the place of arm das."""
    names = list(config.arms)
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={names}: name each arm once, the baseline first")
    found = variants(config.vary)
    if found and "das" not in names:
        raise UserError(f"arms={names}: vary takes the place of arm das, which is not among them")
    arms = {}
    for name in names:
        if name != "das" or not found:
            arms[name] = own_overrides(name, overrides)
            continue
        for label, own in found.items():
            arms[label] = own_overrides("das", [*overrides, *own, f"arm.name='{label}'"])
    return arms


def arm_config(name: str, overrides: list[str]) -> DictConfig:
    """The config of one arm."""
    return compose_config(own_overrides(name, overrides))


def own_overrides(name: str, overrides: list[str]) -> list[str]:
    """The user's overrides with this arm's group. Raises UserError for an arm that does not exist."""
    if not (CONFIGS / "arm" / f"{name}.yaml").exists():
        known = sorted(path.stem for path in (CONFIGS / "arm").glob("*.yaml"))
        raise UserError(f"unknown arm {name!r}: choose from {', '.join(known)}")
    own = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    return [*own, f"arm={name}"]


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


def run_arms(
    arms: Mapping[str, DictConfig],
    policy: str,
    folder: Path,
    progress: Progress,
    run_folder: RunFolder,
    start: int = 0,
) -> None:
    """One process an arm. In each step: rollouts one at a time, in rotating order; then all arms train, a core each.

    start: steps already done, whose checkpoints the arms go on from.
    Raises, in one line, RunFailed when an arm fails and UserError when it refuses its input; the others are stopped,
    their files stay.
    """
    spawn = multiprocessing.get_context("spawn")
    with quiet_into(folder / "log.txt"):
        resource_tracker.ensure_running()  # what it says of semaphores that a killed arm left belongs into the log
    pipes: dict[str, Connection] = {}
    processes = {}
    for name, config in arms.items():
        mine, theirs = spawn.Pipe()
        container = OmegaConf.to_container(config, resolve=True)
        process = spawn.Process(
            target=_arm_process,
            args=(container, policy, folder / "arms" / name, folder.name, theirs, start),
            name=f"arm-{name}",
        )
        process.start()
        theirs.close()
        pipes[name], processes[name] = mine, process
    names = list(arms)
    try:
        for step in range(start, progress.steps):
            for name in names:
                expect(pipes[name], "rollout", name, folder)
            if step == start:
                progress.start()
            turn = step % len(names)
            for name in [*names[turn:], *names[:turn]]:
                tell(pipes[name], "go")
                expect(pipes[name], "rolled", name, folder)
            cores = os.cpu_count() or 1
            for first in range(0, len(names), cores):
                together = names[first : first + cores]
                for name in together:
                    tell(pipes[name], "go")
                for name in together:
                    row = expect(pipes[name], "step", name, folder)
                    run_folder.add_metrics(row)
                    progress.step(row)
        for name in names:
            expect(pipes[name], "done", name, folder)
    finally:
        for pipe in pipes.values():
            pipe.close()  # an arm that still waits for its turn ends, and closes its W&B run
        for process in processes.values():
            process.join(timeout=15)
            if process.exitcode is None:
                process.terminate()


def tell(pipe: Connection, message: Any) -> None:
    """Send, if the other end still lives. An arm that is dead cannot take its turn: `expect` reads its last word, or
    says that there is none. A parent that has gone may be ending the comparison for another arm."""
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def expect(pipe: Connection, what: str, name: str, folder: Path) -> Any:
    """The next message of an arm, which must be `what`."""
    log = folder / "arms" / name / "log.txt"
    try:
        kind, value = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"arm {name} was killed (out of memory?), its log is {log}{resume.hint(folder)}") from None
    if kind == "refused":
        raise UserError(f"arm {name}: {value}")
    if kind == "error":
        raise RunFailed(f"arm {name}: {value} (log: {log}){resume.hint(folder)}")
    if kind != what:
        raise RunFailed(f"arm {name} answered {kind!r} where {what!r} was due: see {log}")
    return value


def _arm_process(
    container: dict[str, Any], policy: str, folder: Path, group: str, pipe: Connection, start: int
) -> None:
    """Body of an arm's process. Output goes to its log; errors go to the parent as one line."""
    die_with_parent()
    config = OmegaConf.create(container)
    assert isinstance(config, DictConfig)
    with quiet_into(folder / "log.txt"):
        try:
            train_arm(config, policy, folder, group, PipeTurns(pipe), start=start)
            pipe.send(("done", None))
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent was interrupted or has gone; it has said so
        except (UserError, EngineError) as error:
            tell(pipe, ("refused", str(error)))
        except Exception as error:
            resume.log_traceback(folder / "log.txt")
            tell(pipe, ("error", resume.in_one_line(error)))
