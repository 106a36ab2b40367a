"""An AsyncGRPOTrainer as a script would build it, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import das

STEPS = 6
ROWS = 5  # prompts; a step takes 2, so the dataset is begun again amid a step
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 40,
    "token_budget": 0,
    "learning_rate": 0.002,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


def reward(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
    return [float(len(set(ids)) - ids[0] % 7 + right) for ids, right in zip(completion_ids, answer, strict=True)]


def built(policy: str, folder: Path, rewarded: Callable[..., list[float]] = reward, **changes: Any) -> Any:
    """An AsyncGRPOTrainer, as a script would build it. changes: of its config."""
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    asked = [[{"role": "user", "content": f"what is {n} + {n + 3}?"}] for n in range(ROWS)]
    return AsyncGRPOTrainer(
        model=policy,
        reward_funcs=rewarded,
        args=AsyncGRPOConfig(output_dir=str(folder), **{**SETTINGS, **changes}),
        train_dataset=Dataset.from_dict({"prompt": asked, "answer": list(range(ROWS))}),
    )


def speculate(method: str, lag: int) -> None:
    engine = {"max_model_len": 128, "extra": {"num_gpu_blocks_override": 256}}
    das.speculate(method, budget={"name": "fixed", "tokens": 8}, engine=engine, lag=lag)
