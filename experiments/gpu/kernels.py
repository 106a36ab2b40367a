"""The part `kernels` of task=check_gpu: do single operations give a row the same bits whatever the number of rows is?

No model is needed. Each result is a line of kernels.jsonl, written at once: operation, rows, digest of row 0's bits,
microseconds. A second run with the same code, torch and device goes on behind the last line.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from das.files import add_rows, write_text
from experiments.gpu.device import median_seconds
from experiments.gpu.verdict import Scale, Verdict

ROWS = (1, 2, 5, 17, 32, 33, 64, 65, 128, 255, 256, 512, 513, 2048)
LINES = "kernels.jsonl"
Operation = Callable[[Any], Any]


def kernels(scale: Scale) -> Verdict:
    """Run every operation with every number of rows. Fails on a GPU if an operation on which exactness rests gives row
    0 other bits for some number of rows. torch's own operations are reported only."""
    rows_of = scale.pick(ROWS, (1, 2, 5))
    path = scale.folder / LINES
    made = identity(scale)
    found = read_lines(path, made)
    for name, width, operation in operations(scale):
        left = [rows for rows in rows_of if (name, rows) not in found]
        for rows, given in zip(left, inputs(left, width, scale), strict=True):
            digest, seconds = measured(operation, given)
            found[name, rows] = digest
            row = {"operation": name, "rows": rows, "digest": digest, "us": 1e6 * seconds, "made": made}
            add_rows(path, [row])
    names = sorted({name for name, _ in found})
    differing = {name: first_difference(name, rows_of, found) for name in names}
    broken = [name for name in names if differing[name] is not None and not name.startswith("torch ")]
    line = f"{len(names) - len(broken)} of {len(names)} operations give row 0 the same bits at {rows_of[0]} to "
    line += f"{rows_of[-1]} rows, or are torch's own"
    if broken:
        line += "; NOT " + ", ".join(f"{name} (from {differing[name]} rows on)" for name in broken)
    return Verdict(not broken or not scale.gpu, line, {"first_difference": differing, "rows": rows_of})


def first_difference(name: str, rows_of: tuple[int, ...], found: dict[tuple[str, int], str]) -> int | None:
    """Return the least number of rows at which row 0 has other bits than alone; None if there is none."""
    return next((rows for rows in rows_of if found[name, rows] != found[name, rows_of[0]]), None)


def identity(scale: Scale) -> str:
    """Return what the lines of an earlier run must have in common with this one: code, torch and device."""
    import torch

    device = torch.cuda.get_device_name() if scale.gpu else "CPU"
    return f"{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]} torch {torch.__version__} {device}"


def read_lines(path: Path, made: str) -> dict[tuple[str, int], str]:
    """Return (operation, rows) -> digest of the lines of an earlier run with this identity. A last line that is
    incomplete, because that run was ended, is removed from the file."""
    complete = path.read_text().split("\n")[:-1] if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line in complete))
    rows = [json.loads(line) for line in complete]
    return {(row["operation"], row["rows"]): row["digest"] for row in rows if row["made"] == made}


def inputs(counts: list[int], width: int, scale: Scale) -> Iterator[Any]:
    """Yields for each number of rows a matrix of that many, [rows, width], of which row 0 is always the same."""
    import torch

    device = scale.pick("cuda", "cpu")
    first = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    for count in counts:
        others = torch.randn(count - 1, width, device=device)
        yield torch.cat([first.to(device), others])


def measured(operation: Operation, given: Any) -> tuple[str, float]:
    """Return a digest of row 0 of the result, and the median seconds that the operation takes."""
    import torch

    row = operation(given.clone())[0].contiguous().cpu()
    digest = hashlib.sha256(row.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
    return digest, median_seconds(lambda: operation(given), given.device)


def operations(scale: Scale) -> Iterator[tuple[str, int, Operation]]:
    """Yields name, input width and function of each operation. On a CPU they are torch's only, with tiny shapes."""
    import torch

    from das.engine.patches.tuned_matmuls import LARGE
    from das.verify.sampling_parameters import keep_likeliest

    invariant = _invariant_kernels() if scale.gpu else None
    device, dtype = scale.pick("cuda", "cpu"), scale.pick(torch.bfloat16, torch.float32)
    for outputs, width in scale.pick(LARGE, ((48, 32),)):
        weight = torch.randn(outputs, width, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        yield f"torch linear {outputs}x{width}", width, partial(_with_weight, torch.nn.functional.linear, weight)
        if invariant is not None:
            yield f"linear {outputs}x{width}", width, partial(_with_weight, invariant.linear_batch_invariant, weight)
    if invariant is not None:
        for width in (3584, 4096):
            ones = torch.ones(width, device=device, dtype=dtype)
            yield f"norm {width}", width, partial(_with_weight, invariant.rms_norm_batch_invariant, ones)
    vocab = scale.pick(151936, 600)
    yield "torch cumsum", vocab, lambda x: x.softmax(-1).cumsum(-1)
    yield "torch sort", vocab, lambda x: x.sort(-1).values
    if invariant is not None:
        yield "softmax", vocab, lambda x: invariant.softmax(x, -1)
    yield "top-p", vocab, lambda x: keep_likeliest(x.clone(), None, torch.full((len(x),), 0.95, device=x.device))


def _with_weight(function: Callable[[Any, Any], Any], weight: Any, x: Any) -> Any:
    return function(x.to(weight.dtype), weight)


def _invariant_kernels() -> Any:
    """Returns vLLM's module of batch-invariant kernels, set up as in an engine of das."""
    import das

    das.install(batch_invariant=True)
    name = "vllm.model_executor.determinism.batch_invariant"
    if find_spec("vllm.model_executor.determinism") is None:  # vLLM up to 0.27
        name = "vllm.model_executor.layers.batch_invariant"
    module = import_module(name)
    module.init_batch_invariance()
    return module
