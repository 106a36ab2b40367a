"""GRPO of Qwen3-8B on DeepScaleR's 40,000 problems, with drafts from past rollouts, on eight GPUs (docs/eight_gpus.md):

accelerate launch --config_file launch/fsdp.yaml --num_processes 8 examples/qwen3_8b_deepscaler.py

Any argument of TRL's GRPOConfig may follow, such as --vllm_mode server: the engine then has GPUs of its own.
--method none: without drafts; --model, --data: others, hub id or folder.
"""

from argparse import ArgumentParser

import das

own = ArgumentParser(allow_abbrev=False, add_help=False)
own.add_argument("--method", default="das")
own.add_argument("--model", default="Qwen/Qwen3-8B")
own.add_argument("--data", default="agentica-org/DeepScaleR-Preview-Dataset")
options, arguments = own.parse_known_args()
das.speculate(options.method)  # the line that makes rollouts draft

from datasets import load_dataset  # noqa: E402
from transformers import HfArgumentParser  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.rewards import accuracy_reward  # noqa: E402

ASK = " Let's think step by step and output the final answer within \\boxed{}."

parser = HfArgumentParser(GRPOConfig)
parser.set_defaults(
    output_dir="outputs/deepscaler",
    # Rollouts: each of 8 GPUs has an engine, which sleeps while the policy trains.
    use_vllm=True,
    vllm_mode="colocate",
    vllm_enable_sleep_mode=True,
    vllm_gpu_memory_utilization=0.7,  # beside the trainer's shard, which stays
    vllm_max_model_length=9216,  # tokens: prompts of 1,024
    max_completion_length=8192,  # as in DeepScaleR's first stage
    temperature=0.6,
    # A step: 8 processes x 1 x 128 = 1,024 responses = 128 problems x 8.
    num_generations=8,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=128,
    beta=0.0,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    max_steps=315,  # one epoch
    logging_steps=1,
    save_strategy="no",
    report_to="none",  # wandb: after `wandb login`
)
(args,) = parser.parse_args_into_dataclasses(arguments)


def row(example: dict) -> dict:
    """A problem as GRPOTrainer takes it. Drafts come from earlier responses to the same prompt."""
    prompt = [{"role": "user", "content": example["problem"] + ASK}]
    return {"prompt": prompt, "solution": f"${example['answer']}$"}


problems = load_dataset(options.data, split="train")
trainer = GRPOTrainer(
    model=options.model,
    reward_funcs=accuracy_reward,
    args=args,
    train_dataset=problems.map(row, remove_columns=problems.column_names),
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
