"""`das.speculate()`: speculative rollouts in an ordinary script with TRL's GRPOTrainer and its colocated vLLM."""

import functools
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from das.budget import DEFAULT_BUDGET
from das.budget.schedule import LongestFirst
from das.drafter import DEFAULT_UNIT, UNITS, HistoryDrafter
from das.engine import patches
from das.engine.build import EngineError, EngineSettings, prepare_environment, speculative_config
from das.engine.rollout import rollout_row
from das.training.generation import SpeculativeGeneration

LOGGED = ("rollout_s", "tokens_per_pass", "drafted", "accepted", "draft_share")  # into TRL's logs, as das/NAME
PATIENCE = 3  # training rollouts that may go without an accepted token before it is said


def speculate(
    method: str = "das",
    drafter: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> None:
    """Let GRPOTrainers built from now on roll out with drafts and keyed verification. They need `use_vllm=True,
    vllm_mode="colocate"`; the rest of the script stays as it is.

    Noise is keyed by `args.seed`, the step and the request's place in it, so `speculate(method="none")` gives the same
    tokens, rewards, losses and weights without drafts. A row's problem is its `problem_id`, or else its prompt.
    TRL's logs get das/rollout_s, das/tokens_per_pass, das/drafted, das/accepted and das/draft_share.

    method: drafts by das | ngram | suffix | none.
    drafter: options of HistoryDrafter that differ from the defaults, and `unit`: what its window counts, "epoch" or
    "step". budget: name and settings of a budget in place of `marginal`. engine: fields of EngineSettings in place of
    what follows from the trainer's arguments.

    Raises EngineError, ValueError or TypeError for options that cannot be, UnsupportedVersion for other versions of
    vLLM or TRL. A trainer raises EngineError when it is used with what cannot be combined (see `refuse`).
    """
    options = dict(drafter or {})
    unit = options.pop("unit", DEFAULT_UNIT)
    if unit not in UNITS:
        raise ValueError(f"drafter unit {unit!r}: choose epoch or step")
    HistoryDrafter(**options)
    gpu = torch.cuda.is_available()
    fields = {
        "method": method,
        "drafter": options,
        "budget": budget or DEFAULT_BUDGET,
        "enforce_eager": not gpu,  # on the CPU compiling costs more than it gains
        "batch_invariant": gpu,  # without it drafts change the last bits of logits (docs/exactness.md)
        **(engine or {}),
    }
    settings = EngineSettings(**{"model": "", **fields})
    speculative_config(settings)
    prepare_environment(batch_invariant=settings.batch_invariant)
    patches.use_generation_backend(functools.partial(TrainersGeneration, fields=fields, unit=unit))
    patches.around_generation(generate_and_score)


class TrainersGeneration(SpeculativeGeneration):
    """The backend of a GRPOTrainer that knows nothing of it."""

    def __init__(self, *args: Any, fields: Mapping[str, Any], unit: str, **kwargs: Any):
        """fields: of EngineSettings, before what follows from TRL's arguments. unit: of the drafter's clock."""
        refuse(kwargs)
        dtype = kwargs["model"].dtype
        self.unit = unit
        self.next_clock = 0
        self.rollouts = self.prompts = self.drafted = self.accepted = 0  # of the training
        settings = {
            "model": kwargs["model"].name_or_path,
            # vLLM's "auto" takes bfloat16 for a float32 model: the CPU is exact in float32 (docs/exactness.md).
            "dtype": "auto" if torch.cuda.is_available() else str(dtype).removeprefix("torch."),
            "max_model_len": kwargs["max_model_length"],
            "max_num_seqs": kwargs["max_num_seqs"],
            "gpu_memory_utilization": kwargs["gpu_memory_utilization"],
            "extra": {"model_impl": kwargs["model_impl"], "trust_remote_code": kwargs["trust_remote_code"]},
            **fields,
        }
        super().__init__(
            *args,
            engine=EngineSettings(**settings),
            run_seed=0,
            clock=lambda step: self.next_clock,
            after_rollout=self.count,
            schedule=LongestFirst(),
            **kwargs,
        )

    def announce(self, trainer: Any, rows: list[dict[str, Any]]) -> None:
        """The trainer is about to generate for `rows`, a row a response."""
        self.run_seed = trainer.args.seed
        self.step = trainer.state.global_step
        self.evaluation = not trainer.model.training
        self.problems = [problem_id(row) for row in rows]
        if self.evaluation:
            return
        self.rollouts += 1
        here = len(rows) * trainer.accelerator.num_processes // trainer.num_generations
        self.prompts += here
        data = trainer.train_dataset
        if self.unit == "step" or not hasattr(data, "__len__"):
            self.next_clock = self.rollouts
        else:  # TRL leaves out the rows that fill no batch
            self.next_clock = self.prompts // max(here, len(data) // here * here)

    def count(self) -> None:
        """After a rollout: say it if drafting does nothing."""
        if self.evaluation or self.last is None:
            return
        row = rollout_row(self.last)
        self.drafted += row["drafted"]
        self.accepted += row["accepted"]
        if self.engine.method != "none" and self.rollouts == PATIENCE and not self.accepted:
            warnings.warn(
                f"speculation: {self.drafted} tokens drafted and none accepted in the first {PATIENCE} rollouts; "
                "check the budget, drafter min_prob and window, and the problem ids",
                RuntimeWarning,
                stacklevel=2,
            )


def generate_and_score(original: Callable[..., Any], trainer: Any, rows: list[dict[str, Any]]) -> Any:
    """GRPOTrainer's generation of a batch, with what the backend must know before and what the logs get after it."""
    generation = getattr(trainer, "vllm_generation", None)
    if not isinstance(generation, SpeculativeGeneration):
        raise EngineError(
            "this GRPOTrainer does not roll out with das: give its GRPOConfig use_vllm=True and "
            'vllm_mode="colocate", and call das.speculate() before it is built'
        )
    if not isinstance(generation, TrainersGeneration):
        return original(trainer, rows)
    for name in ("tools", "environment_factories", "rollout_func"):
        if getattr(trainer, name):
            raise EngineError(f"{name}: das does not support several turns in TRL; leave it out, or das.speculate()")
    generation.announce(trainer, rows)
    scored = original(trainer, rows)
    assert generation.last is not None
    row = rollout_row(generation.last)
    metrics = trainer._metrics["eval" if generation.evaluation else "train"]
    for name in LOGGED:
        metrics[f"das/{name}"].append(row[name])
    return scored


def refuse(arguments: Mapping[str, Any]) -> None:
    """Raise EngineError for arguments of TRL's VLLMGeneration that das cannot do."""
    if arguments["mode"] != "colocate":
        raise EngineError(f'vllm_mode="{arguments["mode"]}": das drafts in the trainer\'s process; set "colocate"')
    if arguments["enable_sleep_mode"]:
        raise EngineError("vllm_enable_sleep_mode=True: das checks weights in an engine that is awake; set it to False")
    if arguments["tensor_parallel_size"] > 1:
        raise EngineError(
            f"vllm_tensor_parallel_size={arguments['tensor_parallel_size']}: das runs an engine on one GPU; set it to 1"
        )
    if getattr(arguments["model"], "quantization_method", None) is not None:
        raise EngineError("das cannot sync quantized weights into the engine: load the model without quantization")


def problem_id(row: Mapping[str, Any]) -> str:
    """The row's `problem_id`, or a digest of its prompt (a text or a conversation)."""
    if "problem_id" in row:
        return str(row["problem_id"])
    text = json.dumps(row["prompt"], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
