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
import time
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
    from omegaconf import DictConfig, OmegaConf

    from das.general import ranks
    from das.general.side_output import keep_printing
    from experiments import rank_folders
    from experiments.commands import usage
    from experiments.harness import resume
    from experiments.registry import TASKS
    from experiments.run.errors import UserError, one_line_errors
    from experiments.settings import sweep
    from experiments.settings.compose import explain_config_error
    from experiments.settings.config import run_config
except ModuleNotFoundError as missing:
    if str(missing.name).split(".")[0] in ("das", "experiments", "analysis", "rewards"):
        raise
    print(
        f"error: {sys.executable} has no {missing.name}: start run.py with the Python of an environment that has what "
        "it needs, such as .venv/bin/python of `make run` (docs/install.md)",
        file=sys.stderr,
    )
    sys.exit(2)


def now() -> str:
    """Returns date and time to the millisecond: runs that start in the same second get folders of their own."""
    seconds, milliseconds = divmod(time.time_ns() // 10**6, 1000)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(seconds))}.{milliseconds:03d}"


def resolve_folders(started: str) -> None:
    """Register the functions `either` and `started`, with which configs/config.yaml names a run's folder.

    started: date and time of the start, equal on all ranks.
    """
    OmegaConf.register_new_resolver("either", lambda first, second: first or second, replace=True)
    OmegaConf.register_new_resolver("started", lambda: started, replace=True)


resolve_folders(now())


def remove_unused(folder: Path) -> None:
    """Remove the run's folder if it is empty: the input was refused."""
    with suppress(OSError):  # it is not empty, or another process has begun a run in it
        folder.rmdir()


@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    overrides, folder = list(hydra_config.overrides.task), Path(hydra_config.runtime.output_dir)
    with sweep.job(), one_line_errors(lambda: resume.hint(folder), folder), ExitStack() as stack:
        again = False
        with rank_folders.main_first():
            if ranks.is_main():
                stack.callback(remove_unused, folder)
                stack.enter_context(resume.hold(folder))
                again = config.resume is None and resume.goes_on(folder, config, overrides)
        if ranks.gather(again)[0]:
            config.resume = str(folder)
        if config.resume is not None:
            config, overrides = resume.recall(folder, overrides)
        with rank_folders.main_first():
            settings = run_config(config)
            if ranks.count() > 1 and settings.task.name != "train":
                raise UserError(f"task={settings.task.name} runs in one process: start it with python run.py")
        TASKS[settings.task.name].load()(settings, overrides, str(folder))


if __name__ == "__main__":
    keep_printing(lasts=OSError)  # no full disk ends a training
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage())
        sys.exit()
    with one_line_errors():
        rank_folders.join()
        resolve_folders(ranks.gather(now())[0])  # the main rank's time names the folder of all ranks
        with rank_folders.main_first():
            explain_config_error(sys.argv[1:])
        main()
