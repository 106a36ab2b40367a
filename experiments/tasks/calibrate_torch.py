"""task=calibrate_torch: the time of a decode pass on this device, by torch alone, with random weights.

It is for a GPU machine without vLLM. The weights have the shape of a model. A pass computes 1 + drafts tokens of each
live request against its cached keys and values, up to the argmax of the logits. On CUDA a pass is captured as a graph
and timed by events. What the host adds to a pass (scheduling, output) is therefore missing; task.host_us adds it.
Writes latency.json (experiments/replay/latency_files.py). result.json: forms, passes (their number), parameters.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch.nn import functional as F

from experiments.replay.hardware import MODELS, Model
from experiments.replay.latency_files import write_latency
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

TINY = Model(layers=2, hidden=64, inner=128, heads=4, kv_heads=2, vocabulary=256, head_size=16)


class Decoder:
    """A dense decoder with random weights. It computes new tokens of requests whose past keys and values are cached."""

    def __init__(self, shape: Model, device: torch.device, dtype: torch.dtype) -> None:
        def weights(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) / columns**0.5

        self.shape = shape
        qkv_size = (shape.heads + 2 * shape.kv_heads) * shape.head_size
        self.layers = [
            (
                weights(qkv_size, shape.hidden),
                weights(shape.hidden, shape.heads * shape.head_size),
                weights(2 * shape.inner, shape.hidden),
                weights(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        self.embedding = weights(shape.vocabulary, shape.hidden)
        self.head = self.embedding if shape.tied else weights(shape.vocabulary, shape.hidden)
        self.norm = torch.ones(shape.hidden, device=device, dtype=dtype)

    def cache(self, live: int, context: int, new: int) -> list[torch.Tensor]:
        """Keys and values of each layer, all zero: [2, live, kv heads, context + new, head size]."""
        s = self.shape
        size = (2, live, s.kv_heads, context + new, s.head_size)
        return [self.embedding.new_zeros(size) for _ in self.layers]

    def forward(self, tokens_B_N: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        """Next tokens [live, new]. New tokens attend to all others: masked positions would cost the same time."""
        s, (live, new) = self.shape, tokens_B_N.shape
        x = F.embedding(tokens_B_N, self.embedding)
        for (into, out, up, down), keys_values in zip(self.layers, cache, strict=True):
            mixed = F.linear(F.rms_norm(x, self.norm.shape, self.norm), into).view(live, new, -1, s.head_size)
            q, k, v = mixed.transpose(1, 2).split([s.heads, s.kv_heads, s.kv_heads], dim=1)
            keys_values[0, :, :, -new:], keys_values[1, :, :, -new:] = k, v
            attended = F.scaled_dot_product_attention(q, keys_values[0], keys_values[1], enable_gqa=True)
            x = x + F.linear(attended.transpose(1, 2).reshape(live, new, -1), out)
            gate, value = F.linear(F.rms_norm(x, self.norm.shape, self.norm), up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * value, down)
        return F.linear(F.rms_norm(x, self.norm.shape, self.norm), self.head).argmax(-1)


def timed(run_pass: Callable[[], object], device: torch.device, warm_up: int, passes: int) -> list[float]:
    """Seconds of each of `passes` passes, after `warm_up` untimed ones."""
    if device.type != "cuda":
        for _ in range(warm_up):
            run_pass()
        times = []
        for _ in range(passes):
            start = time.perf_counter()
            run_pass()
            times.append(time.perf_counter() - start)
        return times
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a graph must be warmed up on another stream
        for _ in range(warm_up):
            run_pass()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_pass()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(passes + 1)]
    graph.replay()
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def check(task: DictConfig) -> tuple[Model, torch.device, torch.dtype]:
    """Shape of the weights, device and dtype that the settings choose. Raises UserError for bad settings."""
    sizes = {"tiny": TINY, **{name: model for name, model in MODELS.items() if model.experts == 1}}
    if task.model not in sizes:
        raise UserError(f"task.model={task.model}: choose one of {', '.join(sizes)}")
    if task.device not in ("auto", "cuda", "cpu"):
        raise UserError(f"task.device={task.device}: choose auto, cuda or cpu")
    if task.device == "cuda" and not torch.cuda.is_available():
        raise UserError("task.device=cuda: torch sees no GPU here")
    for name, minimum in (("live", 1), ("drafts", 0), ("contexts", 0)):
        if not task[name] or min(task[name]) < minimum:
            raise UserError(f"task.{name}={list(task[name])}: whole numbers, {minimum} or more, are needed")
    if min(task.passes, task.warm_up) < 1 or task.host_us < 0:
        raise UserError("task.passes and task.warm_up must be at least 1, task.host_us not negative")
    cuda = task.device != "cpu" and torch.cuda.is_available()
    device, dtype = torch.device("cuda" if cuda else "cpu"), torch.bfloat16 if cuda else torch.float32
    shape = sizes[task.model]
    gib = max(task.live) * (max(task.contexts) + 1 + max(task.drafts)) * shape.kv_bytes / 2 * dtype.itemsize / 2**30
    if gib > task.kv_gib:
        raise UserError(
            f"keys and values of {max(task.live)} requests of {max(task.contexts)} tokens need {gib:.0f} GiB: lower "
            f"task.live or task.contexts, or raise task.kv_gib={task.kv_gib}"
        )
    return shape, device, dtype


@torch.inference_mode()
def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Time every combination of live requests, context and drafts; write latency.json and result.json."""
    task = config.task
    shape, device, dtype = check(task)
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    decoder = Decoder(shape, device, dtype)
    rows: list[list[float]] = []
    for live in task.live:
        for context in task.contexts:
            for drafts in task.drafts:
                cache = decoder.cache(live, context, 1 + drafts)
                tokens = torch.zeros(live, 1 + drafts, dtype=torch.long, device=device)

                def one_pass(tokens: torch.Tensor = tokens, cache: list[torch.Tensor] = cache) -> torch.Tensor:
                    return decoder.forward(tokens, cache)

                seconds = timed(one_pass, device, int(task.warm_up), int(task.passes))
                rows += [[live, live * (1 + drafts), live * context, s + task.host_us * 1e-6] for s in seconds]
                del cache, tokens, one_pass
            progress.note(f"{live} live, {context} tokens of context: {1e3 * rows[-1][3]:.2f} ms with {drafts} drafts")
    path = Path(folder) / "latency.json"
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    forms = write_latency(path, rows, f"{task.model}, random weights, torch on {name}")
    parameters = float(shape.weight_bytes(torch.ones(1).numpy())) / 2
    run_folder.write_result({"forms": forms, "passes": len(rows), "parameters": parameters})
    progress.note(f"latency model: {path}  (task.latency={path} of replay, advise, balance)")
