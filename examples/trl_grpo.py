"""GRPO with TRL and its colocated vLLM, made faster by one line: python examples/trl_grpo.py MODEL OUTPUT [none]

MODEL: a directory or a hub id. With `none` at the end, the same tokens, losses and weights without drafts.
On a CPU use a small model. A GPU should work too; it has not been tried yet.
"""

import sys

import das

if len(sys.argv) < 3:
    sys.exit("say which model, and where to write: python examples/trl_grpo.py MODEL OUTPUT [none]")
model, output = sys.argv[1:3]
# The line that makes rollouts draft. Call it before the trainer is built. Before TRL is imported, it also silences
# TRL's warnings of vLLM's version.
das.speculate(sys.argv[3] if len(sys.argv) > 3 else "das")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

gpu = torch.cuda.is_available()

questions = ["what is 3 + 4?", "what is 12 - 5?", "add 7 to 15", "take 2 from 9"]
dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in questions])


def reward_digits(completions: list[list[dict[str, str]]], **columns: object) -> list[float]:
    """One point for each digit in a response."""
    return [float(sum(letter.isdigit() for letter in completion[0]["content"])) for completion in completions]


trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward_digits,
    train_dataset=dataset,
    args=GRPOConfig(
        output_dir=output,
        use_vllm=True,
        vllm_mode="colocate",  # das drafts in the trainer's process
        vllm_gpu_memory_utilization=0.3 if gpu else 0.1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=48,
        max_steps=4,
        temperature=0.3,
        learning_rate=0.01,  # far too high for real training; the weights change visibly in four steps
        logging_steps=1,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=gpu,
        report_to="none",
        disable_tqdm=True,
    ),
)
trainer.train()

for row in trainer.state.log_history:
    if "das/tokens_per_pass" in row:
        print(
            f"step {row['step']}: reward {row['reward']:.1f}, {row['das/tokens_per_pass']:.2f} tokens a pass, "
            f"{row['das/accepted']:.0f} of {row['das/drafted']:.0f} drafted tokens accepted"
        )
