"""run.py with something broken on the last rank. Usage: broken_run.py stale|cache SETTINGS OF run.py ..."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from das.general import ranks
from experiments.arm import train_arm

STALE = "model.layers.1.mlp.down_proj.weight"


def stale(trainer: Any) -> None:
    """One tensor of the engine stays as it is, whatever is loaded. Resetting the cache is TRL's last act in a sync."""
    llm = trainer.vllm_generation.llm
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    held, reset = model.get_parameter(STALE).data, llm.reset_prefix_cache
    first = held.clone()

    def put_back_and_reset() -> Any:
        held.copy_(first)
        return reset()

    llm.reset_prefix_cache = put_back_and_reset


def cache(trainer: Any) -> None:
    """The prefix cache keeps what older weights computed."""
    trainer.vllm_generation.llm.reset_prefix_cache = lambda: False


def broken(breaks: Callable[[Any], None], build: Callable[..., Any]) -> Callable[..., Any]:
    def build_broken(*args: Any, **kwargs: Any) -> Any:
        trainer = build(*args, **kwargs)
        if ranks.rank() == ranks.count() - 1:
            breaks(trainer)
        return trainer

    return build_broken


if __name__ == "__main__":
    how = {"stale": stale, "cache": cache}[sys.argv.pop(1)]
    train_arm.build_trainer = broken(how, train_arm.build_trainer)
    run = Path(__file__).resolve().parents[2] / "run.py"
    sys.argv[0] = str(run)
    runpy.run_path(str(run), run_name="__main__")
