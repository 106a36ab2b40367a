"""The one entry point: compose the config, run the task.

python run.py                                  train without speculation and with DAS, and compare them
python run.py arms=[none,ngram,suffix,das]     compare with vLLM's own drafters too
python run.py task=train arm=das budget=classes
python run.py resume=outputs/compare/DATE      resume a run that was stopped
python run.py -m budget=fixed budget.tokens=4,8,16
python run.py --help                           list all tasks
torchrun --nproc_per_node 2 run.py task=train engine.processes=2
"""

import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path


def told_at_once(number: int, frame: object) -> None:
    """End a process that has not begun to work."""
    print("error: ended before it began", file=sys.stderr, flush=True)
    os._exit(128 + number)


if __name__ == "__main__":  # what follows takes seconds
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, told_at_once)

try:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from das.general import ranks
    from das.general.side_output import keep_printing
    from experiments.arm import resume
    from experiments.run import environment
    from experiments.run.errors import UserError, one_line_errors
    from experiments.settings import compose
    from experiments.settings.compose import Composed, of_hydra
    from experiments.settings.config import run_config
    from experiments.settings.tasks import TASKS, usage
except ModuleNotFoundError as missing:
    if str(missing.name).split(".")[0] in ("das", "experiments", "analysis", "rewards"):
        raise
    print(
        f"error: {sys.executable} has no {missing.name}: start run.py with the Python of an environment that has what "
        "it needs, such as .venv/bin/python of `make run` (docs/install.md)",
        file=sys.stderr,
    )
    sys.exit(2)


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be created or written. Raises UserError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be created ({error.strerror}): set out=OTHER_DIR") from error
    if not os.access(folder.parent, os.W_OK) or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is not a folder that can be written: set out=OTHER_DIR")


def remove_unused(folder: Path) -> None:
    """Remove the run's folder if it is empty: the input was refused."""
    with suppress(OSError):  # it is not empty, or another process has begun a run in it
        folder.rmdir()


def run(composed: Composed) -> None:
    """Do the task of a config, in its folder."""
    folder = composed.folder
    with one_line_errors(lambda: resume.hint(folder), folder), ExitStack() as stack:
        again = False
        with environment.main_first():
            if ranks.is_main():
                stack.callback(remove_unused, folder)
                stack.enter_context(resume.hold(folder))
                again = composed.config.resume is None and resume.goes_on(composed)
        if ranks.gather(again)[0] or composed.config.resume is not None:
            composed = resume.recall(folder, composed.overrides)
        with environment.main_first():
            config = run_config(composed.config)
            if ranks.count() > 1 and config.task.name != "train":
                raise UserError(f"task={config.task.name} runs in one process: start it with python run.py")
        TASKS[config.task.name].load()(config, composed, str(folder))


def job(config: DictConfig) -> None:
    """Do a job of a sweep. Hydra calls this."""
    hydra_config = HydraConfig.get()
    with compose.job_of_sweep():
        run(of_hydra(config, hydra_config, compose.overrides_of(hydra_config)))


def main(arguments: list[str]) -> None:
    """Do what a command line asks for. One with flags (-m, --cfg, --info ...) is Hydra's."""
    flags = {argument for argument in arguments if argument.startswith("-")}
    if not flags:
        with environment.main_first():
            composed = compose.composed(arguments)
            if (resumed := composed.config.resume) is not None and not Path(str(resumed)).is_dir():
                raise UserError(f"resume={resumed}: no such folder")
            require_writable(composed.folder)
        run(composed)
        return
    if flags <= {"-m", "--multirun"}:
        jobs = compose.jobs_of([argument for argument in arguments if argument not in flags])
        require_writable(jobs[0].sweep)
    sys.argv[1:] = map(compose.addable, arguments)
    hydra.main(version_base=None, config_path="configs", config_name="config")(job)()


if __name__ == "__main__":
    keep_printing(lasts=OSError)  # no full disk ends a training
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage())
        sys.exit()
    with one_line_errors():
        environment.join()
        compose.name_folders(ranks.gather(compose.now())[0])  # the main rank's time names the folder of all ranks
        main(sys.argv[1:])
