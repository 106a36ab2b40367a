"""Train one arm: GRPO with the arm's drafts, leaving a run folder."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis import read
from das.engine.proposer import HISTORY
from das.training import checkpoint, ranks
from das.training.turns import Turns
from experiments.harness import resume
from experiments.run.errors import RunFailed, UserError
from experiments.run.run_folder import RunFolder, write_text


def train_arm(
    config: DictConfig,
    policy: str,
    folder: Path,
    group: str,
    turns: Turns,
    callbacks: Sequence[Any] = (),
    start: int = 0,
) -> None:
    """Run the configured training of `config.arm`; final.json holds what identity needs beyond metrics.jsonl.

    Of several ranks all take part; the main one alone writes, but for each rank's part of the history.
    callbacks: of transformers' Trainer, beside the usual ones. start: the step whose checkpoint, verified and with the
    folder rewound to it (experiments.harness.resume), is gone on from.
    Raises RunFailed if the arm was to draft and drafted nothing, UserError for a checkpoint of other weights or data.
    """
    from experiments.harness import setup

    said = resume.about(config)
    setup.prepare(config)
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

    from das.training.digests import optimizer_digest, weights_digest
    from das.training.resumable_trainer import FINAL, Checkpoints
    from das.training.trainer import SpeculativeGRPOTrainer
    from experiments.harness.tracking import Tracker

    settings = setup.engine_settings(config, policy)
    args = grpo_arguments(config, folder)
    rows = setup.dataset(config, policy)
    config.data.problems = len(rows)  # null, for all, is a number in what the run records
    if ranks.is_main():
        run = RunFolder(folder, config)
    model = AutoModelForCausalLM.from_pretrained(
        policy, dtype=settings.dtype, use_safetensors=True, trust_remote_code=False
    )
    about = {**said, "policy": weights_digest(model), "data": text_digest(json.dumps(rows.to_list()))}
    saved = folder / resume.CHECKPOINTS
    if start:
        resume.refuse_another(checkpoint.run_identity(saved, start), about, saved)
    if start == config.trainer.max_steps:  # it had ended
        for name in (FINAL, HISTORY):
            if (checkpoint.step_folder(saved, start) / name).exists():
                shutil.copy(checkpoint.step_folder(saved, start) / name, folder / name)
        check_drafted(config, folder)
        return
    if ranks.is_main():
        tracker = Tracker(config, config.arm.name, group, folder)

    def on_step(row: dict[str, Any], rollout: Any, rewards: list[float]) -> None:
        row = {"arm": config.arm.name, **row, **reward.take_counts()}
        row["alarms"] = row["alarms"] + tracker.log(row)
        run.add_rollout(row["step"], rollout_rows(rollout, rewards))
        run.add_timeline(row["step"], {k: v for k, v in rollout.report.items() if k.startswith(("step_", "pass_"))})
        run.add_metrics(row)
        turns.after_step(row)

    try:
        reward = setup.reward(config)
        trainer = SpeculativeGRPOTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(policy, trust_remote_code=False),
            train_dataset=rows,
            args=args,
            reward=reward,
            engine=settings,
            checkpoints=Checkpoints(saved, config.checkpoint.keep, about),
            turns=turns,
            schedule=setup.schedule(config),
            history_unit=config.drafter.unit,
            on_step=on_step,
            callbacks=list(callbacks),
        )
        trainer.remove_callback(PrinterCallback)  # rows go to metrics.jsonl and the progress line
        if start:
            trainer.resume(start)
        else:
            trainer.train()
        trainer.vllm_generation.llm.collective_rpc("das_save_history", args=(str(ranks.own_file(folder / HISTORY)),))
        final = {
            "final_weights": of_all_ranks(weights_digest(trainer.model)),
            "optimizer": of_all_ranks(optimizer_digest(trainer.optimizer)),
        }
        if ranks.is_main():
            write_text(folder / FINAL, json.dumps(final))
            tracker.end(final)
    finally:
        if ranks.is_main():
            tracker.close()
    if not ranks.is_main():
        return
    check_drafted(config, folder)


def check_drafted(config: DictConfig, folder: Path) -> None:
    """Raise RunFailed if a drafting arm's run in `folder` drafted nothing."""
    if config.arm.method != "none" and not any(row["drafted"] for row in read.metrics(folder)):
        raise RunFailed(
            f"arm {config.arm.name} drafted nothing in {config.trainer.max_steps} steps: speculation was silently off; "
            "check drafter.min_prob, drafter.scope and the budget"
        )


def grpo_arguments(config: DictConfig, folder: Path) -> Any:
    """TRL's arguments for `config.trainer`, with checkpoints as `config.checkpoint` says.

    Raises UserError for what TRL refuses.
    """
    import torch
    from trl import GRPOConfig

    given = OmegaConf.to_container(config.trainer, resolve=True)
    assert isinstance(given, dict)
    try:
        return GRPOConfig(
            output_dir=str(folder / resume.SCRATCH),
            seed=config.seed,
            use_vllm=True,
            vllm_mode="colocate",
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=torch.cuda.is_available(),
            report_to="none",
            logging_steps=1,
            save_strategy="steps" if config.checkpoint.every else "no",
            save_steps=config.checkpoint.every or 1,
            disable_tqdm=True,
            **{str(key): value for key, value in given.items()},
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"trainer: {error}") from error


def text_digest(text: str) -> str:
    """Short SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_all_ranks(digest: str) -> str:
    """One digest for the run: the ranks' own where all hold the same, as in DDP; of shards, a digest of theirs."""
    digests = ranks.gather(digest)
    return digest if len(set(digests)) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def rollout_rows(rollout: Any, rewards: Sequence[float | None]) -> list[dict[str, Any]]:
    """One row a response, in the format of recorded traces plus what it cost."""
    return [
        {
            "problem_id": problem,
            "run": rollout.step,
            "sample": i,
            "reward": reward,
            "finish_reason": reason,
            "response_ids": response,
            **cost,
        }
        for i, (problem, reward, reason, response, cost) in enumerate(
            zip(
                rollout.problems,
                rewards,
                rollout.finish_reasons,
                rollout.responses,
                rollout.requests,
                strict=True,
            )
        )
    ]
