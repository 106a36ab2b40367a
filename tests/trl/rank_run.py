"""A plain TRL script on several ranks. Usage: rank_run.py METHOD,METHOD... POLICY FOLDER [NAME=VALUE ...]

It trains once with each method, such as das. NAME=VALUE: further arguments of GRPOConfig, as JSON. Each rank writes
what it did into FOLDER/METHOD_rankN.json.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl_runs import ON_CPU, ask

import das
from das.general import ranks
from experiments.digests import weights_digest

ROWS = 16  # of a step, over all ranks
QUESTIONS = ["what is 3 + 4?", "what is 12 - 5?", "add 7 to 15", "take 2 from 9"]


def reward_variety(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """One point for each distinct token of a response."""
    return [float(len(set(tokens))) for tokens in completion_ids]


def unpadded(values_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> list[list[float]]:
    """The values of each row."""
    return [values[kept].tolist() for values, kept in zip(values_B_T, mask_B_T, strict=True)]


class Recorder(GRPOTrainer):
    """Takes down the tokens, drafts and losses of this rank. asks: whether it asks the engine in each step, too."""

    def __init__(self, *args: Any, asks: bool, **kwargs: Any):
        self.steps: list[dict[str, Any]] = []
        self.asks = asks
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        scored = super()._generate_and_score_completions(inputs)
        last, mask = self.vllm_generation.last, scored["completion_mask"].bool()
        self.steps.append(
            {
                "tokens": unpadded(scored["completion_ids"], mask),
                "logprobs": unpadded(scored["sampling_per_token_logps"], mask),
                "requests": [[request.passes, request.drafted] for request in last.finished],
                "drafted": last.report.drafted,
                "accepted": last.accepted,
                "problems": [each.problem for each in last.finished],
                "history_tokens": last.report.history_tokens,
                "losses": [],
            }
        )
        return scored

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.steps[-1]["losses"].append(float(loss))
        if self.asks:
            assert all(ask(self.vllm_generation))
        return loss


def train(
    method: str,
    policy: str,
    folder: Path,
    further: dict[str, Any],
    after: Callable[[Any], Any] = lambda trainer: None,
    cluster: dict[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
    resume: Path | None = None,
    asks: bool = False,
) -> dict[str, Any]:
    """What this rank did. after: called with the trainer in the end; what it returns is the `result`. resume: the
    checkpoint from which it goes on. asks: see Recorder."""
    on_server = further.get("vllm_mode") == "server"  # it has the options of drafter and budget
    # Other drafts on each rank: those who share an engine must take the drafts of one of them all the same.
    options: dict[str, Any] = {}
    if not on_server:
        drafter = {"window": 2, "min_prob": 0.3 if ranks.rank() else 0.005}
        options = {"drafter": drafter, "budget": {"name": "fixed", "tokens": 8}}
    das.speculate(method, cluster=cluster, **options)
    arguments = {
        **ON_CPU,
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": ROWS // ranks.count(),
        "num_generations": 4,
        "max_completion_length": 32,
        "max_steps": 3,
        "learning_rate": 0.01,
        **further,
    }
    trainer = Recorder(
        model=policy,
        reward_funcs=reward_variety,
        train_dataset=Dataset.from_list([{"prompt": question} for question in QUESTIONS]),
        args=GRPOConfig(**arguments),
        callbacks=list(callbacks),
        asks=asks,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return {"steps": trainer.steps, "weights": weights_digest(trainer.model), "result": after(trainer)}


def saved_history(trainer: Any) -> bool:
    """Whether this rank writes the history of its engine."""
    path = Path(trainer.args.output_dir).parent / f"history_rank{ranks.rank()}.npz"
    trainer.vllm_generation.llm.collective_rpc("das_save_history", args=(str(path),))
    return path.exists()


if __name__ == "__main__":
    methods, policy, folder, *settings = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    further = {name: json.loads(value) for name, value in (setting.split("=", 1) for setting in settings)}
    for method in methods.split(","):
        result = train(method, policy, Path(folder), further, saved_history, asks=method == "das")
        (Path(folder) / f"{method}_rank{ranks.rank()}.json").write_text(json.dumps(result))
