"""Train one arm with GRPO, and write its run folder.

transformers, TRL and vLLM are imported inside functions, after `prepare_process`, because they read the environment
when they are imported. The parent process of a comparison also imports this module, and needs none of them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import read
from das.engine.rollouts.rollout import Rollout
from das.engine.settings import HISTORY, EngineSettings
from das.general import ranks
from das.general.files import write_text
from das.general.side_output import stage
from experiments.arm import resume
from experiments.arm.data import by_problem, check_vocabulary, dataset, is_recorded
from experiments.arm.engine import engine_settings, make_schedule, prepare_process, without_distributions
from experiments.arm.evaluation import TrainingEvaluation, held_out
from experiments.arm.models import online_head, policy_directory, with_head
from experiments.arm.reward import make_reward
from experiments.arm.tracking import Tracker
from experiments.digests import weights_digest
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Barrier
from experiments.run.run_folder import RunFolder, own_file, own_folder
from experiments.settings.config import RunConfig, steps_per_epoch
from experiments.training import checkpoint
from rewards.conversations import ConversationReward

if TYPE_CHECKING:
    from experiments.training.checkpoint import Checkpoints
    from experiments.training.trainer import SpeculativeGRPOTrainer

FINAL = "final.json"  # digests of the last weights and optimizer state


@dataclass(frozen=True)
class ArmRun:
    """One arm to be trained, with its folder, its barrier and the step at which it starts."""

    config: RunConfig
    policy: str  # directory or hub id
    folder: Path  # where the run's files go
    group: str  # W&B group
    barrier: Barrier  # says when the arm may roll out and train
    callbacks: Sequence[Any] = ()  # further callbacks of transformers' Trainer
    start: int = 0  # steps already done. resume.py has verified their checkpoint and reset the folder to it
    weights: Path | None = None  # task.train_once: the file through which the first arm gives its weights to the others
    trains: bool = True  # False: the arm takes its weights from this file, or keeps its first ones


def make_parts(arms: Sequence[RunConfig], note: Callable[[str], None]) -> str:
    """Make the policy, draft models and heads of these arms if the cache lacks them, and check their data.

    This is done before the arms start, so that the user sees progress and errors. note: called with a line about each
    thing that is made or left out. Returns the policy: a directory or hub id. Raises UserError for impossible data.
    """
    first = arms[0]  # all arms share policy and data
    policies = [policy_directory(arm, note) for arm in arms]
    rows = dataset(first, policies[0], note)
    if is_recorded(first):
        check_vocabulary(first, policies[0])
    for arm in arms:
        with_head(arm, policies[0], note)
        if line := without_distributions(arm):
            note(line)
    if first.eval.every:
        held_out(first, policies[0], rows, note)
    return policies[0]


def train_arm(run: ArmRun) -> None:
    """Train the arm. final.json gets digests, with which a comparison checks that arms ended identically.

    All ranks must call this. Only the main rank writes files, except that each rank saves its own part of the history
    of past responses. Raises RunFailed if an arm that should draft drafted nothing, and UserError for impossible
    settings and for a checkpoint of other weights or data.
    """
    prepare_process(run.config)
    train_alike()
    config = with_head(run.config, run.policy)
    engine, arguments = engine_settings(config, run.policy), grpo_arguments(config, run.folder)
    rows = dataset(config, run.policy)
    model = load_model(run.policy, engine.dtype)
    saved = checkpoints(config, run, model, rows)
    recorded = run.config.with_problems(len(rows))
    run_folder = RunFolder(run.folder, recorded.resolved) if ranks.is_main() else None
    if run.start:
        resume.refuse_another(saved.folder, run.start, saved.run_identity)
    if run.start == config.trainer.max_steps:
        restore_last_files(run)
    else:
        with ExitStack() as stack:
            reward, head = make_reward(config.reward), online_head(config, model)
            evaluation = TrainingEvaluation(config, run.policy, rows) if config.eval.every else None
            if evaluation is not None:
                stack.callback(evaluation.close)
            log = StepLog(run, recorded, run_folder, reward)
            stack.callback(log.close)
            trainer = build_trainer(
                run,
                model=model,
                train_dataset=rows,
                args=arguments,
                reward=reward,
                engine=engine,
                checkpoints=saved,
                on_step=log.on_step,
                evaluate=evaluation,
                head=head,
            )
            stack.callback(trainer.vllm_generation.close)
            log.end(train(run, trainer))
    if ranks.is_main():
        check_drafted(run.config, read.metrics(run.folder))


def train_alike() -> None:
    """Make a GPU compute the same bits in every run. A CPU does so anyway."""
    import torch

    from das.trl.determinism import train_deterministically

    if torch.cuda.is_available():
        train_deterministically()


def load_model(policy: str, dtype: str) -> Any:
    """Load the policy to train. policy: directory or hub id. dtype: the type of its weights."""
    stage("loads the policy")
    from transformers import AutoModelForCausalLM

    # On CPUs, where accelerate has no FSDP 2, transformers shards the policy with torch's `fully_shard`, over gloo.
    sharded = {"distributed_config": {"fsdp_size": ranks.count()}} if ranks.fsdp_on_cpu() else {}
    return AutoModelForCausalLM.from_pretrained(
        policy, dtype=dtype, use_safetensors=True, trust_remote_code=False, **sharded
    )


def checkpoints(config: RunConfig, run: ArmRun, model: Any, rows: Any) -> "Checkpoints":
    """Return the description of the arm's checkpoints. Each of them records the settings, and digests of the initial
    weights and of the rows, so that only the same run resumes from it."""
    from experiments.training.checkpoint import Checkpoints

    # All ranks have read the same files, so one of them computes the digest.
    policy_digest = ranks.gather(weights_digest(model) if ranks.is_main() else "")[0]
    data_digest = hashlib.sha256(json.dumps(rows.to_list()).encode()).hexdigest()[:16]
    started_from = {"policy": policy_digest, "data": data_digest}
    return Checkpoints(
        run.folder / resume.CHECKPOINTS, config.checkpoint.keep, {**resume.identity(config), **started_from}
    )


def grpo_arguments(config: RunConfig, folder: Path) -> Any:
    """Make TRL's GRPOConfig from `config.trainer` and `config.checkpoint`. Raises UserError for what TRL refuses."""
    import torch
    from trl import GRPOConfig

    gpu = torch.cuda.is_available()
    try:
        return GRPOConfig(
            output_dir=str(folder / resume.SCRATCH),
            seed=config.seed,
            use_vllm=True,
            vllm_mode="colocate",
            use_cpu=not gpu,
            bf16=gpu,
            gradient_checkpointing=gpu,
            report_to="none",
            logging_steps=1,
            save_strategy="steps" if config.checkpoint.every else "no",
            save_steps=config.checkpoint.every or 1,
            disable_tqdm=True,
            **config.trainer.arguments,
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"trainer: {error}") from error


def build_trainer(run: ArmRun, engine: EngineSettings, **parts: Any) -> "SpeculativeGRPOTrainer":
    """Build the trainer of the arm, with its engine. parts: arguments of the trainer that do not follow from `run`."""
    from transformers import AutoTokenizer, PrinterCallback

    from das.trl.engines.cluster import BESIDE
    from experiments.training.engines import Recording
    from experiments.training.generation import HarnessGeneration
    from experiments.training.train_once import GiveWeights, RolloutTrainer, TakeWeights
    from experiments.training.trainer import SpeculativeGRPOTrainer

    config, own_process = run.config, run.config.engine.own_process
    tokenizer = AutoTokenizer.from_pretrained(run.policy, trust_remote_code=False)
    rows, recording = parts["train_dataset"], None
    if is_recorded(config):
        per_epoch = steps_per_epoch(len(rows), config.problems_per_step)
        recording = Recording(by_problem(config, tokenizer, rows), config.trainer.num_generations, per_epoch)
    backend = partial(
        HarnessGeneration,
        engine=engine,
        history_unit=config.drafter.unit,
        cluster=config.cluster or (BESIDE if own_process else None),
        schedule=make_schedule(config.schedule),
        recording=recording,
    )
    trainer = (SpeculativeGRPOTrainer if run.trains else RolloutTrainer)(
        processing_class=tokenizer,
        backend=backend,
        barrier=run.barrier,
        trim_padding=config.trainer.trim_padding,
        ahead=config.trainer.lag if config.trainer.lag or own_process else None,
        callbacks=list(run.callbacks),
        **parts,
    )
    if run.weights is not None:
        trainer.add_callback(GiveWeights(run.weights, run.barrier) if run.trains else TakeWeights(run.weights))
    trainer.remove_callback(PrinterCallback)  # rows go to metrics.jsonl and the progress line
    return trainer


def train(run: ArmRun, trainer: "SpeculativeGRPOTrainer") -> dict[str, str]:
    """Train to the end and save the drafter's history. Returns digests of the final weights and optimizer state."""
    if run.start:
        trainer.resume(run.start)
    else:
        trainer.train()
    history = own_file(run.folder / HISTORY)
    trainer.vllm_generation.save_history(history)
    return trainer.digests()


class StepLog:
    """Records an arm's finished steps in its run folder and in W&B, and reports them to the barrier.

    On other ranks than the main one it records nothing, because the trainer reports steps on the main rank only.
    """

    def __init__(self, run: ArmRun, recorded: RunConfig, run_folder: RunFolder | None, reward: ConversationReward):
        """Start the W&B run, on the main rank. recorded: the config as the run records it. run_folder: None on all
        other ranks."""
        self._arm, self._barrier, self._reward = run.config.arm.name, run.barrier, reward
        self._run_folder = run_folder
        self._tracker = Tracker(recorded, run.group, run.folder) if run_folder is not None else None

    def on_step(self, row: dict[str, Any], rollout: Rollout, rewards: Sequence[float | None]) -> None:
        """Record one finished step. row: its metrics (docs/reference.md)."""
        assert self._run_folder is not None
        assert self._tracker is not None
        row = {"arm": self._arm, **row, **self._reward.take_counts()}
        row["alarms"] = row["alarms"] + self._tracker.log(row)
        self._run_folder.add_step(row, rollout, rewards)
        self._barrier.after_step(row)

    def end(self, digests: dict[str, str]) -> None:
        """Record the end of the training: write final.json. digests: of the final weights and optimizer state."""
        if self._run_folder is not None and self._tracker is not None:
            write_text(self._run_folder.path / FINAL, json.dumps(digests))
            self._tracker.end(digests)

    def close(self) -> None:
        """Close the W&B run, whether the training came to its end or not."""
        if self._tracker is not None:
            self._tracker.close()


def restore_last_files(run: ArmRun) -> None:
    """Restore the files that a run writes at its very end. They are copied from the checkpoint of the run's
    last step."""
    last = checkpoint.step_folder(run.folder / resume.CHECKPOINTS, run.start)
    for name, place in ((FINAL, run.folder / FINAL), (HISTORY, own_file(run.folder / HISTORY))):
        saved = own_folder(last) / name
        if saved.exists():
            shutil.copy(saved, place)


def check_drafted(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise RunFailed if the arm should draft, but drafted nothing. rows: its metrics."""
    if config.arm.drafts and not any(row["drafted"] for row in rows):
        raise RunFailed(
            f"arm {config.arm.name} drafted nothing in {len(rows)} steps: speculation was silently off; check "
            "drafter.min_prob, drafter.window and the budget"
        )
