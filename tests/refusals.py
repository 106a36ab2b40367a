"""What users read when something is refused: one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from experiments.run.errors import UserError


@contextmanager
def one_line(pattern: str) -> Iterator[None]:
    """The code within must raise a UserError of one line in which the pattern is found."""
    with pytest.raises(UserError, match=pattern) as refused:
        yield
    assert "\n" not in str(refused.value)
