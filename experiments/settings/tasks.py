"""The settings of each task. What they mean, configs/task/NAME.yaml says."""

import re
from typing import Annotated, Literal

from pydantic import Field

from experiments.settings.checked import Choice, Named, Number, Whole
from experiments.settings.groups import Count, Processes, Size, Steps


class Task(Named):
    lock_step: bool = True  # a comparison's; configs/setting sets it whatever the task


class Advise(Task):
    rollouts: str | None
    latency: str | None
    group: Whole
    prompt: Whole
    gpu: str
    model: str
    step_ms: list[list[Number]] | None
    engines: Count
    batch: Count
    max_num_seqs: Count
    max_tokens: Count
    tokens: Count
    draft_us: Number
    rest_s: Number | None
    visits: Number | None


class BenchDrafter(Task):
    traces: list[str]
    group: Processes
    problems: Count
    tokens: Count
    array_sizes: list[Count]


class BenchModelDrafters(Task):
    problems: Count
    samples: Count
    max_tokens: Count
    tokens: Count
    drafters: list[Literal["w8", "w4", "draft_model", "eagle3"]]
    trained: str | None


class Calibrate(Task):
    live: list[Count]
    drafts: list[Whole]
    passes: Count
    rounds: Count


class CheckGpu(Task):
    folder: str
    parts: list[str] | None
    device: Literal["auto", "cuda", "cpu"]
    seconds: Number
    recorded: str | None


class Compare(Task):
    lock_step: bool
    train: bool
    train_once: bool
    recorded: str | None


class Evaluate(Task):
    problems: Count | None
    samples: Count
    k: list[Size] | None


class Experiment(Task):
    folder: str


class Recordings(Task):
    folder: str
    source: str
    only: list[str] | None


class Reproduce(Task):
    folder: str
    traces: str
    run_length: Annotated[float, Field(ge=1, le=2**31)]
    draft_us: Number
    problems: Count
    maths_steps: Count
    maths_batch: Count
    code_steps: Count
    scope_problems: Count


class Rollout(Task):
    steps: Steps


class Train(Task):
    group: str | None


TASK = Choice("task", {re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in Task.__subclasses__()})
