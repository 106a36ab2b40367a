"""The one entry point: compose the config, run the task.

python run.py                                  compare: GRPO without speculation and with DAS
python run.py arms=[none,ngram,suffix,das]     with vLLM's own drafters beside them
python run.py task=train arm=das budget=classes
python run.py -m budget=fixed budget.tokens=4,8,16
"""

import importlib
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.errors import explain_config_error, one_line_errors


@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    task = importlib.import_module(f"experiments.{config.task.name}")
    with one_line_errors():
        task.run(config, list(hydra_config.overrides.task), hydra_config.runtime.output_dir)


if __name__ == "__main__":
    explain_config_error(sys.argv[1:])
    main()
