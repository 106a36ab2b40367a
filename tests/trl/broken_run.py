"""run.py whose last rank keeps a tensor of older weights. Usage: broken_run.py SETTINGS OF run.py ..."""

import runpy
import sys
from pathlib import Path
from typing import Any

from das.general import ranks
from experiments.arm import train_arm

STALE = "model.layers.1.mlp.down_proj.weight"


def build_stale(*args: Any, **kwargs: Any) -> Any:
    """On the last rank one tensor of the engine stays as it is, whatever is loaded. Resetting the cache is TRL's last
    act in a sync."""
    trainer = build(*args, **kwargs)
    if ranks.rank() == ranks.count() - 1:
        llm = trainer.vllm_generation.llm
        held = llm.llm_engine.model_executor.driver_worker.model_runner.model.get_parameter(STALE).data
        first, reset = held.clone(), llm.reset_prefix_cache
        llm.reset_prefix_cache = lambda: (held.copy_(first), reset())
    return trainer


if __name__ == "__main__":
    build, train_arm.build_trainer = train_arm.build_trainer, build_stale
    run = Path(__file__).resolve().parents[2] / "run.py"
    sys.argv[0] = str(run)
    runpy.run_path(str(run), run_name="__main__")
