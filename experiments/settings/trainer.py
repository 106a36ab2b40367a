"""The settings of configs/trainer: those that the harness reads, the further arguments of TRL's GRPOConfig that a run
takes, and what to use in place of others.

A run makes its engine, folders, checkpoints and records itself. So it would ignore TRL's arguments about them, or fail
in the middle of a training. Arguments that are not given keep TRL's defaults.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, create_model, model_validator

from experiments.run.errors import UserError
from experiments.settings.checked import Group, Number, Settings, checked, unknown
from experiments.settings.groups import Count, Share, Size, Steps, Temperature, Tokens

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


class TrainerConfig(Group):
    """The settings of configs/trainer: those that the harness reads or that TRL has from transformers, and
    `further_arguments` of TRL's GRPOConfig. None: TRL's default."""

    model_config = ConfigDict(extra="allow")

    max_steps: Steps
    per_device_train_batch_size: Size  # responses; DAS: 2,048 over all processes
    gradient_accumulation_steps: Size = 1
    steps_per_generation: Size | None = None
    num_iterations: Size = 1
    num_generations: Count
    max_completion_length: Tokens
    temperature: Temperature
    learning_rate: Share  # 0: the policy stays as it is
    lr_scheduler_type: str
    lr_scheduler_kwargs: Settings | None = None
    warmup_steps: Number | None = None
    max_grad_norm: Number
    optim: str | None = None
    optim_args: str | None = None
    weight_decay: Number | None = None
    adam_beta1: Share | None = None
    adam_beta2: Share | None = None
    adam_epsilon: Share | None = None
    beta: Number
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"] | None = None
    gradient_checkpointing_kwargs: Settings | None = None
    model_init_kwargs: Settings | None = None
    generation_kwargs: Settings | None = None
    chat_template_kwargs: Settings
    vllm_importance_sampling_correction: bool
    vllm_tensor_parallel_size: Size = 1
    trim_padding: bool
    lag: Annotated[int, Field(ge=0, le=8)]  # training steps

    OF_HARNESS: ClassVar = ("trim_padding", "lag")  # TRL does not know them; experiments.training.trainer explains them

    @model_validator(mode="after")
    def _taken(self) -> Self:
        further, given = further_arguments, self.model_extra or {}
        for name in given:
            if name not in further().model_fields:
                known = [*further().model_fields, *type(self).model_fields]
                raise UserError(f"trainer.{name}: {instead(name) or unknown(f'trainer.{name}', known, 'trainer')}")
        if given:
            checked(further(), given, "trainer")
        return self

    @property
    def arguments(self) -> Settings:
        """The arguments of GRPOConfig."""
        return {key: value for key, value in self.given.items() if key not in self.OF_HARNESS}

    @property
    def steps_of_generation(self) -> int:
        """How many backward passes train on responses that were generated together."""
        return (self.steps_per_generation or self.gradient_accumulation_steps) * self.num_iterations
