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

# What to use in place of arguments -> how their names begin. "": a run takes them. The first one that fits counts.
INSTEAD = {
    "": ("vllm_importance_sampling_", "vllm_enable_sleep_mode"),
    "the engine's settings are in configs/engine": ("vllm_",),
    "every run rolls out with vLLM": ("use_vllm", "use_transformers_", "transformers_", "cache_implementation"),
    "run.py trains without DeepSpeed": ("ds3_",),
    "the setting seed orders the problems": ("shuffle_dataset",),
    "rewards read all columns": ("remove_unused_columns",),
    "a run has one reward": ("reward_weights", "multi_objective_aggregation"),
    "resume=FOLDER goes on with a run": ("resume_from_checkpoint",),
    "set trainer.max_steps": ("num_train_epochs",),
    "set trainer.per_device_train_batch_size and trainer.gradient_accumulation_steps": ("generation_batch_size",),
    "set eval.samples": ("num_generations_eval",),
    "set eval.every": ("eval_",),
    "set checkpoint.every": ("save_",),
    "set out=FOLDER": ("output_dir",),
    "set seed": ("seed",),
    "set wandb": ("report_to",),
    "a run records all responses": ("log_", "num_completions_to_print"),
}


def instead(name: str) -> str:
    """Return what to say about an argument that a run does not take. Empty if nothing is known about it."""
    advice = next((advice for advice, begins in INSTEAD.items() if name.startswith(begins)), "")
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
