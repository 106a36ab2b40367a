"""The settings of each task by their kinds. What they mean, configs/task/NAME.yaml says."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from experiments.settings.typed import Named, Range, by_name

Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Counts = list[Count]
Texts = list[str]

TASKS: dict[str, Mapping[Any, str]] = {
    "advise": {
        str | None: "rollouts latency",
        int: "group prompt",
        str: "gpu model",
        list[list[float]] | None: "step_ms",
        Count: "engines batch max_num_seqs max_tokens tokens",
        float: "draft_us",
        float | None: "rest_s visits",
    },
    "bench_drafter": {
        Texts: "traces",
        Annotated[int, Range(1, 1024)]: "group",
        Count: "problems tokens",
        Counts: "array_sizes",
    },
    "bench_model_drafters": {
        Count: "problems samples max_tokens tokens",
        list[Literal["w8", "w4", "draft_model", "eagle3"]]: "drafters",
        str | None: "trained",
    },
    "calibrate": {Counts: "live contexts", list[int]: "drafts", Count: "passes rounds", str | None: "shape"},
    "check_gpu": {
        str: "folder",
        Texts | None: "parts",
        Literal["auto", "cuda", "cpu"]: "device",
        float: "seconds",
        str | None: "recorded",
    },
    "compare": {bool: "lock_step train train_once", str | None: "recorded"},
    "evaluate": {Count | None: "problems", Count: "samples", list[Annotated[int, Range(1, 2**16)]] | None: "k"},
    "experiment": {str: "folder"},
    "recordings": {str: "folder source", Texts | None: "only"},
    "reproduce": {
        str: "folder traces",
        Annotated[float, Range(1)]: "run_length",
        float: "draft_us",
        Count: "problems maths_steps maths_batch code_steps scope_problems",
    },
    "rollout": {Annotated[int, Range(1, 10**7)]: "steps"},
    "train": {str | None: "group"},
}

TASK = Named(
    "task",
    {name: {"name": str, **by_name(kinds)} for name, kinds in TASKS.items()},
    also={"lock_step": bool},  # configs/setting sets it whatever the task
)
