"""TRL's AsyncGRPOTrainer without a server, on engines of das: python examples/trl_async_grpo.py MODEL OUTPUT [none]

The engine has a process of its own and rolls out while the policy trains, at a fixed lag. With `none` at the end, the
same tokens, losses and weights without drafts. On a CPU use a small model. A GPU has not been tried.
"""

import sys

import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

import das


def reward_digits(completions: list[list[dict[str, str]]], **columns: object) -> list[float]:
    """One point for each digit in a response."""
    return [float(sum(letter.isdigit() for letter in completion[0]["content"])) for completion in completions]


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("say which model, and where to write: python examples/trl_async_grpo.py MODEL OUTPUT [none]")
    model, output = sys.argv[1:3]
    method = sys.argv[3] if len(sys.argv) > 3 else "das"
    gpu = torch.cuda.is_available()
    questions = ["what is 3 + 4?", "what is 12 - 5?", "add 7 to 15", "take 2 from 9"]
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in questions])

    das.speculate(method, lag=2)  # weights sample for the step that is two steps away

    trainer = AsyncGRPOTrainer(
        model=model,
        reward_funcs=reward_digits,
        train_dataset=dataset,
        args=AsyncGRPOConfig(
            output_dir=output,
            token_budget=0,  # micro-batches of a fixed number of samples
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=48,
            max_steps=4,
            temperature=0.3,
            learning_rate=0.01,  # far too high for real training; the weights change visibly in four steps
            save_steps=4,
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
                f"waited {row['perf/rollout_wait_s']:.2f} s for samples of weights {row['sample/staleness_max']:.0f} "
                "updates old"
            )


if __name__ == "__main__":  # the engine's process imports this file again
    main()
