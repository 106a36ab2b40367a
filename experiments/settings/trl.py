"""The further arguments of TRL's GRPOConfig that a run takes, and what to use in place of others.

A run makes its engine, folders, checkpoints and records itself. So it would ignore TRL's arguments about them, or fail
in the middle of a training. Arguments that are not given keep TRL's defaults.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from experiments.settings.typed import Range, Settings, by_name

Size = Annotated[int, Range(1, 2**16)]

TAKEN: Mapping[str, Any] = by_name(
    {
        float: """
            top_p min_p repetition_penalty
            router_aux_loss_coef
            epsilon epsilon_high delta off_policy_mask_threshold top_entropy_quantile
            vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
            sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
            entropy_coef entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target ref_model_mixup_alpha
            weight_decay adam_beta1 adam_beta2 adam_epsilon warmup_steps""",
        int: "top_k max_tool_calling_iterations pad_to_multiple_of ref_model_sync_steps",
        Size: "gradient_accumulation_steps steps_per_generation num_iterations vllm_tensor_parallel_size",
        bool: """
            trust_remote_code disable_dropout cast_lm_head_to_fp32 vllm_enable_sleep_mode
            mask_truncated_completions use_bias_correction_kl use_adaptive_entropy sync_ref_model""",
        str: "optim optim_args",
        Settings: "generation_kwargs model_init_kwargs gradient_checkpointing_kwargs lr_scheduler_kwargs",
        Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]: "loss_type",
        Literal["token", "sequence"]: "importance_sampling_level",
        Literal["group", "batch", "none"]: "scale_rewards",
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]: "vllm_importance_sampling_mode",
    }
)

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
    """Return what to say about an argument that a run does not take. Empty if nothing is known about it."""
    advice = next((advice for begin, advice in _INSTEAD.items() if name.startswith(begin)), "")
    return f"a run does not take this argument of TRL; {advice}" if advice else ""
