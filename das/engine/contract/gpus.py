"""The state of exactness on GPUs, by version of vLLM, head size, dtype and sampler.

`python -m das doctor` reads this table, and docs/compatibility.md has it in full. A row says "measured" when a GPU has
run `task=check_gpu`, and not before: so far one H200, with vLLM 0.32.0 on torch 2.11 (docs/benchmarks.md).
"""

from dataclasses import dataclass
from typing import Literal

from das.engine.contract.versions import VLLM

State = Literal["measured", "expected by reading", "proved by compile", "unmeasured", "refused"]

INVARIANT_HEAD = 128  # the head size for which FlashAttention 3 should be batch-invariant under vLLM's flag
OLDEST = 80  # ten times the lowest compute capability with batch-invariant kernels
# Throughput that vLLM's flag for batch invariance costs, as shares: .13 measured with an 8B shape and 64 requests on an
# H200 (docs/benchmarks.md), .35 upstream with a 1.7B policy on an H20.
INVARIANCE_COST = (0.13, 0.35)


@dataclass(frozen=True)
class Claim:
    """What is known of one use on GPUs. versions: of vLLM. why: the ground for the state, or what is done."""

    what: str
    versions: tuple[str, ...]
    state: State
    why: str


_MEASURED = ("0.32.0",)  # versions of vLLM that ran task=check_gpu; also those with a table of tiles
_OTHERS = tuple(version for version in VLLM if version not in _MEASURED)
TABLE = (
    Claim(
        "level 2: dense model, heads of 128, bfloat16, Hopper",
        _MEASURED,
        "measured",
        "vLLM's flag; one H200, 8B's width: equal logits at 6,144 of 6,144 positions, drafts of 0 to 32 tokens",
    ),
    Claim("the same without top-p", _OTHERS, "expected by reading", "vLLM's flag"),
    Claim("heads below 128", VLLM, "unmeasured", "FlashAttention 3 is not invariant there; das takes Triton's"),
    Claim("heads above 128", VLLM, "unmeasured", "vLLM chooses the attention"),
    Claim("float16, float32", VLLM, "unmeasured", "Triton's float32 products are set to IEEE"),
    Claim("top-p", _MEASURED, "measured", "in a third of these requests; das groups rows, doubles one"),
    Claim(
        "top-p", _OTHERS, "unmeasured", "torch sums one row and many by other algorithms; das groups rows, doubles one"
    ),
    Claim(
        "the keyed sampler's kernel",
        _MEASURED,
        "measured",
        "208 of 208 rows have plain torch's token; level 1: p = .74",
    ),
    Claim(
        "the keyed sampler's kernel", _OTHERS, "proved by compile", "nothing fused for sm_90; interpreted: C's tokens"
    ),
    Claim("tiles for 8B shapes", _MEASURED, "measured", "64 rows and more: all compile to one wgmma"),
    Claim("tiles for 7B shapes", _MEASURED, "expected by reading", "64 rows and more: all compile to one wgmma"),
    Claim("vLLM's tiles for 1.7B shapes", _MEASURED, "unmeasured", "mma.sync below 64 rows, wgmma from there on"),
    Claim("MoE", VLLM, "unmeasured", "not tried"),
    Claim("drafts that branch", VLLM, "unmeasured", "two blocking copies a pass"),
    Claim(
        "self-drafts",
        VLLM,
        "unmeasured",
        "passes run eagerly, some 400 launches each: no gain expected for few requests; float32 is refused",
    ),
    Claim("asynchronous scheduling", _MEASURED, "measured", "with full graphs for drafts of any length"),
    Claim("a colocated trainer from 9.0 on", VLLM, "unmeasured", "vLLM replaces its batched products, softmax, means"),
    Claim("a colocated trainer below 9.0", VLLM, "refused", "the products that vLLM puts there have no backward pass"),
    Claim("compute capability below 8.0", VLLM, "refused", "vLLM has no batch-invariant kernels there"),
)


def invariance(version: str | None) -> Claim:
    """Returns the claim about level 2 with this version of vLLM. An unknown version has the claim of the newest."""
    of_version = (row for row in TABLE[:2] if version in row.versions)
    return next(of_version, TABLE[0])


def markdown() -> str:
    """Returns the table, for docs/compatibility.md."""
    rows = (f"| {row.what} | {', '.join(row.versions)} | {row.state} | {row.why} |" for row in TABLE)
    return "\n".join(("| on GPUs | vLLM | state | why |", "|---|---|---|---|", *rows))


def to_stock(ratio_to_none: float) -> tuple[float, float]:
    """Returns the range of an exact engine's rollout time over that of `stock` on a GPU, from its ratio to `none`.
    `none` has batch-invariant kernels too, so it is slower than `stock` (INVARIANCE_COST)."""
    low, high = (ratio_to_none / (1 - cost) for cost in INVARIANCE_COST)
    return low, high
