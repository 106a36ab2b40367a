"""The further arguments of TRL's GRPOConfig that a run takes, and what to use in place of others.

A run makes its engine, folders, checkpoints and records itself. So it would ignore TRL's arguments about them, or fail
in the middle of a training. Arguments that are not given keep TRL's defaults.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import create_model

from experiments.settings.checked import Group

# Begin of an argument's name -> what to use in its place, or nothing if a run takes it. The first one that fits counts.
INSTEAD = {
    "vllm_importance_sampling_": "",
    "vllm_enable_sleep_mode": "",
    "vllm_": "the engine's settings are in configs/engine",
    "use_vllm": "every run rolls out with vLLM",
    "use_transformers_": "every run rolls out with vLLM",
    "transformers_": "every run rolls out with vLLM",
    "cache_implementation": "every run rolls out with vLLM",
    "ds3_": "run.py trains without DeepSpeed",
    "shuffle_dataset": "the setting seed orders the problems",
    "remove_unused_columns": "rewards read all columns",
    "reward_weights": "a run has one reward",
    "multi_objective_aggregation": "a run has one reward",
    "resume_from_checkpoint": "resume=FOLDER goes on with a run",
    "num_train_epochs": "set trainer.max_steps",
    "generation_batch_size": "set trainer.per_device_train_batch_size and trainer.gradient_accumulation_steps",
    "num_generations_eval": "set eval.samples",
    "eval_": "set eval.every",
    "save_": "set checkpoint.every",
    "output_dir": "set out=FOLDER",
    "seed": "set seed",
    "report_to": "set wandb",
    "log_": "a run records all responses",
    "num_completions_to_print": "a run records all responses",
}


def instead(name: str) -> str:
    """Return what to say about an argument that a run does not take. Empty if nothing is known about it."""
    advice = next((advice for begin, advice in INSTEAD.items() if name.startswith(begin)), "")
    return f"a run does not take this argument of TRL; {advice}" if advice else ""


@cache
def further_arguments() -> type[Group]:
    """Return the arguments of GRPOConfig that a run takes. They are read from TRL's source: to import it takes seconds,
    and settings are checked before."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "trainer" / "grpo_config.py").read_text())
    (config,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GRPOConfig"]
    kinds = {ast.unparse(node.target): node.annotation for node in config.body if isinstance(node, ast.AnnAssign)}
    fields: dict[str, Any] = {
        name: (ast.unparse(kind), None) for name, kind in kinds.items() if not instead(name)
    }  # pydantic evaluates the annotations
    return create_model("GRPOConfig", __base__=Group, __module__=__name__, **fields)
