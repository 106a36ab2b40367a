"""The one entry point: compose the config, run the task.

python run.py                                  compare: GRPO without speculation and with DAS
python run.py arms=[none,ngram,suffix,das]     with vLLM's own drafters beside them
python run.py task=train arm=das budget=classes
python run.py resume=outputs/compare/DATE
python run.py -m budget=fixed budget.tokens=4,8,16
torchrun --nproc_per_node 2 run.py task=train engine.processes=2 checkpoint.every=0
"""

import importlib
import os
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from das.training import ranks
from experiments.harness import resume
from experiments.run import checks
from experiments.run.errors import UserError, explain_config_error, one_line_errors

OmegaConf.register_new_resolver("either", lambda first, second: first or second, replace=True)  # for hydra.run.dir


@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    overrides, folder = list(hydra_config.overrides.task), hydra_config.runtime.output_dir
    with one_line_errors(lambda: resume.hint(Path(folder))):
        if config.resume is not None:
            config, overrides = resume.recall(Path(folder), overrides)
        if ranks.count() > 1 and config.task.name != "train":
            with ranks.main_first():
                raise UserError(f"task={config.task.name} runs in one process: start it with python run.py")
        checks.check_values(config)
        task = importlib.import_module(f"experiments.tasks.{config.task.name}")
        task.run(config, overrides, folder)


if __name__ == "__main__":
    ranks.join()
    with ranks.main_first():
        explain_config_error(sys.argv[1:])
    if ranks.count() > 1:  # one folder for all, whatever their clocks say
        os.environ["DAS_STARTED"] = ranks.gather(time.strftime("%Y-%m-%d_%H-%M-%S"))[0]
    main()
