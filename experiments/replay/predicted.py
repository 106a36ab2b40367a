"""Predict the times of passes of 7B and 8B policies on GPUs that nobody has measured, as intervals.

The roofline of experiments/replay/hardware.py, with the lowest and the highest of its three published calibrations, and
the launches of the graph that the pass takes (tests/engine/patches/test_cuda_configs.py). Exact engines pay for vLLM's
flag besides. A measured latency.json of task=check_gpu replaces all of it (task.latency).
"""

from itertools import product

import numpy as np

from experiments.replay.hardware import FLOPS_SHARE, GPUS, MODELS, Model

# Throughput that vLLM's flag for batch invariance costs, as shares: .13 measured with an 8B shape and 64 requests on an
# H200 (docs/benchmarks.md), .35 upstream with a 1.7B policy on an H20.
INVARIANCE_COST = (0.13, 0.35)
# Least and most of the three models' values (hardware.py has their means): shares of bandwidth and of the bytes of keys
# and values, and seconds that a live request adds to a pass without drafts and with them.
BANDWIDTH, KV, REQUEST, VERIFIED = (0.793, 0.767), (0.19, 0.46), (39e-6, 74e-6), (152e-6, 232e-6)
LARGEST_GRAPH = 512  # rows
# Assumed, not measured: seconds of the host for a launch; launches of a layer without a graph.
LAUNCH = (4e-6, 10e-6)
LAUNCHES = {"full": 0, "none": 11}
LIVE, DRAFTED, CONTEXT = (1, 64, 256), (0, 4), 1000
Interval = tuple[float, float]  # seconds


def graph(live: int, drafted: int) -> str:
    """Return which graph a pass of das takes. drafted: tokens of each request."""
    return "none" if live * (1 + drafted) > LARGEST_GRAPH else "full"


def stock_seconds(gpu: str, model: Model, live: int, drafted: int, context: int) -> Interval:
    """Return the seconds of a pass with vLLM's own kernels. context: tokens of each request."""
    rows, speed = live * (1 + drafted), GPUS[gpu]
    flop = rows * (model.flop + model.attention_flop * context)
    found = []
    for bandwidth, kv, request, launch in zip(BANDWIDTH, KV, VERIFIED if drafted else REQUEST, LAUNCH, strict=True):
        read = float(model.weight_bytes(np.array(rows))) + kv * model.kv_bytes * context * live
        device = max(read / (speed.bandwidth * bandwidth), flop / (speed.flops * FLOPS_SHARE))
        host = launch * (1 + model.layers * LAUNCHES[graph(live, drafted)])
        found.append(max(device, host) + live * request)
    return found[0], found[1]


def exact_seconds(gpu: str, model: Model, live: int, drafted: int, context: int) -> Interval:
    """Return the same with batch-invariant kernels, whose cost was measured for another model (INVARIANCE_COST)."""
    low, high = stock_seconds(gpu, model, live, drafted, context)
    return low / (1 - INVARIANCE_COST[0]), high / (1 - INVARIANCE_COST[1])


def markdown() -> str:
    """Return the table, for docs/benchmarks.md."""
    gpus = ("H100", "H200")
    kinds = {"stock": stock_seconds, "exact": exact_seconds}
    lines = [
        f"| policy | live x drafted each | graph | {' | '.join(f'{gpu}, {kind}' for gpu in gpus for kind in kinds)} |"
    ]
    lines.append("|---" * (3 + len(gpus) * len(kinds)) + "|")
    for name, live, drafted in product(("7B", "8B"), LIVE, DRAFTED):
        times = (of(gpu, MODELS[name], live, drafted, CONTEXT) for gpu in gpus for of in kinds.values())
        cells = (f"{1e3 * low:.1f} to {1e3 * high:.1f}" for low, high in times)
        lines.append(f"| {name} | {live} x {drafted} | {graph(live, drafted)} | {' | '.join(cells)} |")
    return "\n".join(lines)
