"""List the arguments of TRL's GRPOConfig that a run takes beside those of configs/trainer, and say what to use in place
of others.

A run makes its engine, folders, checkpoints and records itself. So it would ignore TRL's arguments about them, or fail
in the middle of a training.
"""

from typing import Any

# Each argument with an example value, which shows its kind.
TAKEN: dict[str, Any] = {
    # sampling
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "generation_kwargs": {},
    "max_tool_calling_iterations": 4,
    # steps
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "num_iterations": 1,
    # policy
    "model_init_kwargs": {},
    "trust_remote_code": False,
    "disable_dropout": False,
    "cast_lm_head_to_fp32": False,
    "router_aux_loss_coef": 0.001,
    "pad_to_multiple_of": 8,
    "gradient_checkpointing_kwargs": {},
    # loss
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "delta": 1.5,
    "mask_truncated_completions": False,
    "off_policy_mask_threshold": 0.5,
    "use_bias_correction_kl": False,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": 0.1,
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.01,
    "use_adaptive_entropy": False,
    "entropy_coef_min": 0.0,
    "entropy_coef_max": 1.0,
    "entropy_coef_delta": 0.01,
    "entropy_target": 0.2,
    "sync_ref_model": False,
    "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512,
    # optimizer
    "optim": "adamw_torch",
    "optim_args": "text",
    "weight_decay": 0.01,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "warmup_steps": 0.1,
    "lr_scheduler_kwargs": {},
    # engine
    "vllm_enable_sleep_mode": False,
    "vllm_tensor_parallel_size": 1,
}

# Begin of an argument's name -> what to use in its place. The first one that fits counts.
_INSTEAD = {
    "shuffle_dataset": "the setting seed orders the problems",
    "remove_unused_columns": "rewards read all columns",
    "resume_from_checkpoint": "resume=FOLDER goes on with a run",
    "num_train_epochs": "set trainer.max_steps",
    "generation_batch_size": "set trainer.per_device_train_batch_size and trainer.gradient_accumulation_steps",
    "vllm_": "the engine's settings are in configs/engine",
    "use_vllm": "every run rolls out with vLLM",
    "eval_": "set eval.every",
    "save_": "set checkpoint.every",
    "output_dir": "set out=FOLDER",
    "seed": "set seed",
    "report_to": "set wandb",
    "num_generations_eval": "set eval.samples",
}


def instead(name: str) -> str:
    """Return what to use in place of an argument that a run does not take. Empty if this is not known."""
    return next((advice for begin, advice in _INSTEAD.items() if name.startswith(begin)), "")
