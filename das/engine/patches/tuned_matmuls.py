"""Tiles of vLLM's batch-invariant matrix products for the shapes of 7B and 8B models.

vLLM's own tiles were tuned for a 1.7B model's shapes. Any other shape gets one fixed tile, which is far too large for
the few rows of a decode pass. Here each shape gets those tiles of the tuned shape most like it that have 64 rows or
more. Every tile of a shape has the same inner block. That alone does not give a row the same bits in every pass: for
Hopper, tiles of 16 and 32 rows compile to mma.sync and larger ones to wgmma, which may sum in another order. Nobody has
measured these tiles on these shapes yet (docs/install.md).
"""

import math
from collections.abc import Iterable
from typing import Any

FEWEST_ROWS = 64  # the fewest rows of a tile whose product is a wgmma on Hopper

Shape = tuple[int, int]  # outputs and inputs of a linear layer

LARGE: tuple[Shape, ...] = (
    # Qwen2.5-7B, and so DeepSeek-R1-Distill-Qwen-7B: qkv, o, gate and up, down, lm_head
    *((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (152064, 3584)),
    # Qwen3-8B
    *((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096)),
)


def most_alike(shape: Shape, tuned: Iterable[Shape]) -> Shape:
    """Returns the tuned shape that is most like `shape`: its sizes differ from those by the smallest factors."""
    return min(tuned, key=lambda known: sum(abs(math.log(a / b)) for a, b in zip(shape, known, strict=True)))


def one_family(config: Any) -> Any:
    """Returns vLLM's tiles of a shape without those of fewer than FEWEST_ROWS rows. Passes of fewer rows then take the
    next larger tile. config: vLLM's _MatmulShapeConfig, which has at least one large tile for each GPU."""
    kept = tuple((rows, tile) for rows, tile in config.m_buckets if tile.block_m >= FEWEST_ROWS)
    return config._replace(m_buckets=kept)
