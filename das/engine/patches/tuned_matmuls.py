"""Tiles of vLLM's batch-invariant matrix products for the shapes of 7B and 8B models.

vLLM's own tiles were tuned for a 1.7B model's shapes. Any other shape gets one fixed tile, which is far too large for
the few rows of a decode pass. Here each shape gets the tiles of the tuned shape that is most like it. Every tile of a
shape has the same inner block, so a row's sum has the same order whatever the batch is: tiles change how long a pass
takes, but a row has the same bits in every pass. Nobody has measured them on these shapes yet (docs/install.md).
"""

import math
from collections.abc import Iterable

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
