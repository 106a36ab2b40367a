"""Resume a training in any step of any epoch as if it had not stopped. transformers' checkpoints lack three things:

- The order of the data. TRL's sampler draws one order for each epoch from a generator that no checkpoint holds.
- A rollout on which several steps train, if the checkpoint lies between these steps.
- What the rollout side has learned: the drafter's history, lengths, calibration, and the number of rollouts.

run.py has its own checkpoints (experiments/training) and calls the functions. The trainers of a user's script get
`ScriptCheckpoints`, which adds a folder `das` to each checkpoint that transformers writes.

transformers also refuses checkpoints of a policy that it sharded when it loaded it (`whole`): it writes whole weights,
but neither reads these into shards nor writes a sharded optimizer. `checkpoints_accepted` and `complete` mend that.
Files hold whole tensors, which all ranks put together and the main rank writes. So any number of ranks can read them.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from das.general import ranks
from das.general.errors import EngineError, reason_of
from das.general.files import write_text
from das.trl.lag import STATE, StepRollouts

OF_TRANSFORMERS = "trainer_state.json"
FOLDER, ABOUT, SHARED = "das", "about.json", "shared_rollout.pt"
# What decides which rows a step trains on, beside the sampler's draws.
ROWS = ("rows", "seed", "generation_batch_size", "num_generations", "processes", "lag")


def completed_epochs(folder: Path) -> int:
    """Returns the number of epochs that a run had completed when transformers saved the checkpoint in this folder."""
    return int(json.loads((folder / OF_TRANSFORMERS).read_text())["epoch"])


def repeat_draws(sampler: Any, epochs: int) -> None:
    """Let TRL's sampler, a new one, make the draws of so many completed epochs. In the current epoch transformers skips
    the steps that were trained already."""
    if getattr(sampler, "shuffle", False):
        for _ in range(epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


class ScriptCheckpoints:
    """Completes the checkpoints of a trainer that a script builds, and what it resumes from them.

    All ranks write and read: each has a folder of its own. What cannot be restored is said in a warning.
    """

    def __init__(self, trainer: Any, rollouts: StepRollouts):
        """Replace methods of this trainer, which must have its backend already. rollouts: those of its steps."""
        self._trainer = trainer
        self._rollouts = rollouts
        self._epochs_before = 0  # epochs that the run had completed when its checkpoint was saved
        trainer._inner_training_loop = partial(self._train, trainer._inner_training_loop)
        trainer._get_train_sampler = partial(self._sampler, trainer._get_train_sampler)
        trainer._save_checkpoint = partial(self._save, trainer._save_checkpoint)

    def _train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces _inner_training_loop, to which `train` passes the folder of the checkpoint."""
        self._epochs_before = 0
        self._rollouts.begin()
        if (checkpoint := kwargs.get("resume_from_checkpoint")) is not None:
            self._epochs_before = completed_epochs(Path(checkpoint))
            if self._epochs_before and not hasattr(self._trainer.train_dataset, "__len__"):
                _warn(
                    "the stream had ended and begun anew before the checkpoint, and transformers cannot tell where: "
                    "the steps train on other rows than without the stop"
                )
            self._load(Path(checkpoint))
        return original(*args, **kwargs)

    def _sampler(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces _get_train_sampler, which transformers calls once for each training."""
        from trl.trainer.utils import RepeatSampler

        sampler = original(*args, **kwargs)
        if self._epochs_before and not isinstance(sampler, RepeatSampler):
            _warn(
                f"epoch {self._epochs_before + 1}: the draws of a {type(sampler).__name__} are not repeated, so the "
                "rows may be others than without the stop"
            )
        else:
            repeat_draws(sampler, self._epochs_before)
        return sampler

    def _save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces _save_checkpoint: adds this rank's folder, whole or not at all."""
        trainer = self._trainer
        result = original(*args, **kwargs)
        if trainer.args.save_only_model:  # nothing can be resumed from it
            return result
        own = _own(Path(trainer._get_output_dir(trial=None)) / f"checkpoint-{trainer.state.global_step}")
        unfinished = own.with_name(f"{own.name}.unfinished")
        for left in (own, unfinished):  # by a run that was killed here, or resumed from an earlier step
            shutil.rmtree(left, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._rollouts.save(unfinished)
        write_text(unfinished / ABOUT, json.dumps({**self._about(), "micro_batches": trainer._step}))
        trainer.vllm_generation.save_state(unfinished)
        if trainer._step % _window(trainer):
            torch.save(trainer._buffered_inputs, unfinished / SHARED)
        os.rename(unfinished, own)
        return result

    def _load(self, checkpoint: Path) -> None:
        trainer, own = self._trainer, _own(checkpoint)
        generation = trainer.vllm_generation
        about, ours = _read(own / ABOUT) if own.is_dir() else {}, self._about()
        if getattr(trainer.model, "peft_config", None):
            _warn(
                "adapters are trained, and the frozen weights are read anew. Without the stop TRL would have gone on "
                "with weights that it rounds in each sync, so losses differ in their last digits"
            )
        drafts = generation.engine.row.drafts
        if not about and drafts:
            _warn(
                f"{checkpoint} holds no state of das for this process, so the drafter's history begins empty: drafts "
                "are fewer at first, and no token is another"
            )
        elif about and drafts and about["method"] != ours["method"]:
            _warn(
                f"{checkpoint} was saved with das.speculate({about['method']!r}), so the history of {ours['method']!r} "
                "begins empty: drafts are fewer at first, and no token is another"
            )
        elif about and about["method"] == ours["method"]:
            generation.load_state(own)
            if not generation.engines.keeps_history:
                _warn("the server keeps the drafter's history: if it was started anew, the history begins empty")
        # A rank that lacks a state counts rollouts as the others do, so that all have the same history tick.
        generation.rollouts = max(ranks.gather(generation.rollouts))
        if differing := [name for name in ROWS if about and about.get(name, 0) != ours[name]]:
            _warn(
                "the steps train on other rows or weights than without the stop, because "
                + ", ".join(f"{name} was {about.get(name, 0)} and is {ours[name]}" for name in differing)
            )
        step = json.loads((checkpoint / OF_TRANSFORMERS).read_text())["global_step"]
        if (own / STATE).exists():
            self._rollouts.resume(own, step)
        if "micro_batches" in about:
            trainer._step = about["micro_batches"]
        else:
            trainer._step = step * trainer.args.gradient_accumulation_steps
            if trainer._step % _window(trainer):
                _warn(
                    f"the rollout that step {step + 1} shares with the step before it is made anew, with other weights"
                )
        trainer._buffered_inputs = None
        if (own / SHARED).exists():
            device = trainer.accelerator.device
            try:
                trainer._buffered_inputs = torch.load(own / SHARED, map_location=device, weights_only=True)
            except (OSError, EOFError, RuntimeError, UnpicklingError) as error:
                raise _unreadable(own / SHARED, error) from None

    def _about(self) -> dict[str, Any]:
        trainer = self._trainer
        dataset, args = trainer.train_dataset, trainer.args
        return {
            "method": trainer.vllm_generation.engine.method,
            "rows": len(dataset) if hasattr(dataset, "__len__") else None,
            "seed": args.seed,
            "generation_batch_size": getattr(args, "generation_batch_size", None),
            "num_generations": getattr(trainer, "num_generations", 1),
            "processes": ranks.count(),
            "lag": self._rollouts.lag,
        }


def _own(checkpoint: Path) -> Path:
    """Returns this rank's folder in a checkpoint."""
    return checkpoint / (FOLDER if ranks.is_main() else f"{FOLDER}_rank{ranks.rank()}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> EngineError:
    return EngineError(f"{path} cannot be read ({reason_of(error)}): delete its folder, to resume without the history")


def _window(trainer: Any) -> int:
    """Returns the number of micro-batches that share a rollout."""
    args = trainer.args
    batches: int = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
    return batches * getattr(trainer, "num_iterations", 1)


def _warn(text: str) -> None:
    warnings.warn(f"resumed: {text}", RuntimeWarning, stacklevel=2)


# ---- a sharded policy ----

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # transformers' names
SAVED_LATER = "no"  # the save strategy with which transformers builds such a trainer


@contextmanager
def checkpoints_accepted(args: Any, model: Any) -> Iterator[None]:
    """Inside the `with` block, transformers builds a trainer of such a policy although it is to write checkpoints.
    Afterwards call `complete`.

    args: the trainer's; None: transformers' defaults. model: the policy, or where it is loaded from.
    """
    sharded = getattr(model, "is_distributed_loading_by_transformers", False)
    loaded_with = getattr(args, "model_init_kwargs", None) or {}
    if args is None or not (sharded or "distributed_config" in loaded_with):
        yield
        return
    strategy, args.save_strategy = args.save_strategy, type(args.save_strategy)(SAVED_LATER)
    try:
        yield
    finally:
        args.save_strategy = strategy


def complete(trainer: Any) -> None:
    """Let a trainer save and resume what it trains, if its policy is sharded so."""
    model = trainer.model
    if getattr(model, "is_distributed_loading_by_transformers", False):
        # transformers' barrier would keep the other ranks while the main one, whose disk is full, raises.
        model.barrier_after_gathered_checkpoint_save = lambda config: None
        model.save_pretrained = partial(_save_weights, model.save_pretrained)
        trainer._save_optimizer_and_scheduler = partial(_save_optimizer_and_scheduler, trainer)
        trainer._load_optimizer_and_scheduler = partial(_load_optimizer_and_scheduler, trainer)
        trainer._load_from_checkpoint = partial(_load_weights, trainer)
        trainer._load_best_model = lambda: _load_weights(trainer, trainer.state.best_model_checkpoint)


def _write_together(what: str, write: Callable[[], None]) -> None:
    """Call `write` on all ranks. Raises OSError on all of them if one could not write, since a rank that goes on would
    wait for that one."""
    cause, problem = None, ""
    try:
        write()
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises the last for a full disk
        cause, problem = error, reason_of(error)
    if problems := [theirs for theirs in ranks.gather(problem) if theirs]:
        raise OSError(f"{what} could not be written: {problems[0]}") from cause


def _save_weights(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    _write_together("the weights", partial(original, *args, **kwargs))


def _save_optimizer_and_scheduler(trainer: Any, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, options=whole)

    def write() -> None:
        if trainer.args.should_save:  # the other ranks hold nothing
            torch.save(state, Path(folder) / OPTIMIZER)
            torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / SCHEDULER)

    _write_together("the optimizer's state", write)


def _load_optimizer_and_scheduler(trainer: Any, folder: str | None) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    if folder is None:
        return
    state = torch.load(Path(folder) / OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
    whole = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, state, options=whole)
    trainer.lr_scheduler.load_state_dict(torch.load(Path(folder) / SCHEDULER, weights_only=True))


def _load_weights(trainer: Any, folder: str, model: Any = None) -> None:
    import transformers
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model = model or trainer.model
    # transformers reads the files: it knows several of them, and names that differ from those in memory (experts).
    kind = getattr(transformers, model.config.architectures[0])
    weights = kind.from_pretrained(folder, dtype=model.dtype).state_dict()
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
