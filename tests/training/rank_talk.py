"""Ranks that tell each other things. Each asserts what it is told."""

from das.engine.build import EngineError
from das.training import ranks

asked = []


def answer() -> int:
    asked.append(ranks.rank())
    return 7


def fail() -> None:
    asked.append(ranks.rank())
    raise EngineError("no engine")


if __name__ == "__main__":
    ranks.join()
    assert ranks.gather(ranks.rank()) == [0, 1]
    assert ranks.from_main(answer) == 7
    try:
        ranks.from_main(fail)
    except EngineError as error:
        assert str(error) == "no engine"
        asked.append(9)
    assert asked == ([0, 0, 9] if ranks.is_main() else [9])
    assert ranks.scatter(["first", "second"] if ranks.is_main() else []) == ["first", "second"][ranks.rank()]
