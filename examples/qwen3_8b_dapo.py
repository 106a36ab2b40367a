"""GRPO of Qwen3-8B on DAPO-Math-17k, with drafts from past rollouts, on eight GPUs (docs/eight_gpus.md):

accelerate launch --config_file launch/fsdp.yaml --num_processes 8 examples/qwen3_8b_dapo.py

Any argument of TRL's GRPOConfig may follow. --method none: without drafts; --model, --data: others, hub id or folder;
--subset, --columns: of other data, its part and its columns with problem and answer.
"""

from argparse import ArgumentParser

import das

own = ArgumentParser(allow_abbrev=False, add_help=False)
own.add_argument("--method", default="das")
own.add_argument("--model", default="Qwen/Qwen3-8B")
own.add_argument("--data", default="open-r1/DAPO-Math-17k-Processed")
own.add_argument("--subset", default="all")
own.add_argument("--columns", nargs=2, default=["prompt", "solution"])
options, arguments = own.parse_known_args()
das.speculate(options.method)  # the line that makes rollouts draft

from datasets import load_dataset  # noqa: E402
from transformers import HfArgumentParser  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.rewards import accuracy_reward, get_soft_overlong_punishment  # noqa: E402

ASK = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."

parser = HfArgumentParser(GRPOConfig)
parser.set_defaults(
    output_dir="outputs/dapo",
    # Rollouts: each of 8 GPUs has an engine, which sleeps while the policy trains.
    use_vllm=True,
    vllm_mode="colocate",
    vllm_enable_sleep_mode=True,
    vllm_gpu_memory_utilization=0.7,  # beside the trainer's shard, which stays
    vllm_max_model_length=18432,  # tokens: DAPO allows prompts of 2,048
    max_completion_length=16384,
    temperature=1.0,
    # A step: 8 processes x 1 x 128 = 1,024 responses = 128 problems x 8.
    num_generations=8,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=128,
    # DAPO: no KL term, a wider upper clip, a penalty before the limit of length (arXiv 2503.14476).
    beta=0.0,
    epsilon_high=0.28,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    max_steps=272,  # two epochs
    logging_steps=1,
    save_strategy="no",
    report_to="none",  # wandb: after `wandb login`
)
(args,) = parser.parse_args_into_dataclasses(arguments)


def row(example: dict) -> dict:
    """A problem as GRPOTrainer takes it. Drafts come from earlier responses to the same prompt."""
    problem, answer = (example[name] for name in options.columns)
    return {"prompt": [{"role": "user", "content": problem + ASK}], "solution": f"${answer}$"}


problems = load_dataset(options.data, options.subset, split="train")
too_long = get_soft_overlong_punishment(args.max_completion_length, args.max_completion_length // 4)
trainer = GRPOTrainer(
    model=options.model,
    reward_funcs=[accuracy_reward, too_long],
    args=args,
    train_dataset=problems.map(row, remove_columns=problems.column_names),
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
