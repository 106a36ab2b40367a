"""What the parts of task=check_gpu share: their size, their lines of JSON (each number is written as soon as it is
known), and their engines, with random weights that are made on the device."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from das.engine.settings import STOCK
from experiments.run.run_folder import add_rows

Size = TypeVar("Size")
Row = dict[str, Any]
LINES = "lines.jsonl"  # in the folder of results; all parts write into it


@dataclass(frozen=True)
class Scale:
    """gpu: full size on a GPU; otherwise tiny, which only tests the code. folder: of the results. cache: for models.
    recorded: a recording whose text is rolled out; None: made-up text. part: whose lines these are.
    shown: the descriptor to which lines are printed."""

    gpu: bool
    folder: Path
    cache: Path
    recorded: Path | None = None
    part: str = ""
    shown: int = 1

    def pick(self, on_gpu: Size, on_cpu: Size) -> Size:
        """Return the size for the device."""
        return on_gpu if self.gpu else on_cpu

    def note(self, **row: Any) -> None:
        """Write a line of this part, and print it."""
        add_rows(self.folder / LINES, [line := {"part": self.part, **row}])
        os.write(self.shown, f"{json.dumps(line)}\n".encode())

    def noted(self, **wanted: Any) -> list[Row]:
        """Return this part's lines that have these entries."""
        rows = map(json.loads, (self.folder / LINES).read_text().splitlines())
        return [row for row in rows if row["part"] == self.part and wanted.items() <= row.items()]


@dataclass(frozen=True)
class Verdict:
    """ok: whether a part passed. line: what it found."""

    ok: bool
    line: str


# ---- engines ----

SHAPE, THIN = "8b", "8b_thin"  # on a GPU; the second: 8B's width, and so its kernels, in four layers
BATCHED = "max_num_batched_tokens"
# Graphs, but no Inductor, which takes minutes, and may not know this torch.
ON_GPU: Row = {"dtype": "bfloat16", "load_format": "dummy", "compilation_config": {"mode": 0}, BATCHED: 16384}
ON_CPU: Row = {"dtype": "float32", "enforce_eager": True, "gpu_memory_utilization": 0.1, BATCHED: 1024}


def build(scale: Scale, method: str, shape: str = SHAPE, options: Row | None = None, **arguments: Any) -> Any:
    """Build an engine. `stock` is vLLM as it comes; other methods are das's.

    shape: of experiments/policies/shapes.py; a CPU takes a tiny one. options: of das.engine_arguments. arguments:
    further ones of vllm.LLM, and `apart`: whether the engine's core gets a process of its own.
    """
    import das
    from das.engine.build import in_this_process, variables
    from experiments.policies.shapes import random_policy, shape_of, weightless_policy

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")  # the log says which kernels and graphs were chosen
    made: Row = {"logprobs_mode": "processed_logprobs"}  # as TRL sets it
    if method != STOCK:
        late = True if method == "das" and not scale.gpu else None  # a CPU takes the way that a GPU takes by default
        options = {"exact": "distribution", "asynchronous": late, **(options or {})}
        das.install(exact=options["exact"])
        made = das.engine_arguments(method, **options)
    from vllm import LLM

    name, apart = scale.pick(shape, "tiny"), str(int(arguments.pop("apart", False)))
    made |= {"skip_tokenizer_init": True, "gpu_memory_utilization": 0.6} | arguments | scale.pick(ON_GPU, ON_CPU)
    make = weightless_policy if scale.gpu else random_policy
    policy = make(name, shape_of(name).vocabulary or 512, made["dtype"], scale.cache / "policies")
    with variables(in_this_process() | {"VLLM_ENABLE_V1_MULTIPROCESSING": apart}):
        return LLM(str(policy), **made)


def worker_of(llm: Any) -> Any:
    """Return the worker of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def kv_tokens(llm: Any) -> int:
    """Return how many tokens the engine's KV cache holds."""
    cache = llm.llm_engine.vllm_config.cache_config
    return int(cache.num_gpu_blocks * cache.block_size)
