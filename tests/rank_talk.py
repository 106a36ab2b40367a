"""Ranks that tell each other things. Each asserts what it is told."""

import pytest
import torch

from das.general import ranks
from das.general.errors import EngineError
from experiments.run.environment import join

asked = []


def answer() -> int:
    asked.append(ranks.rank())
    return 7


def fail() -> None:
    asked.append(ranks.rank())
    raise EngineError("no engine")


if __name__ == "__main__":
    join()
    assert ranks.gather(ranks.rank()) == [0, 1]
    assert ranks.from_main(answer) == 7
    with pytest.raises(EngineError, match="no engine"):
        ranks.from_main(fail)
    assert asked == ([0, 0] if ranks.is_main() else [])
    assert ranks.scatter(["first", "second"] if ranks.is_main() else []) == ["first", "second"][ranks.rank()]
    torch.distributed.destroy_process_group()  # a thread of gloo may abort a process that ends at once
