"""The table of what is known of GPUs: the docs have it, and it claims no measurement."""

import pytest

from das.engine.contract.gpus import TABLE, invariance, markdown, to_stock
from experiments.run.errors import CONFIGS


def test_the_docs_have_the_table() -> None:
    assert markdown() in (CONFIGS.parent / "docs" / "compatibility.md").read_text()


@pytest.mark.parametrize(("version", "words"), [
    ("0.25.1", "from 256 on"), ("0.26.0", "from 256 on"), ("0.27.1", "vLLM's flag"), ("0.32.0", "vLLM's flag"),
])  # fmt: skip
def test_level_2_is_expected_and_not_claimed(version: str, words: str) -> None:
    claim = invariance(version)
    assert version in claim.versions
    assert claim.state == "expected by reading"
    assert words in claim.why


def test_no_row_says_measured() -> None:
    assert {row.state for row in TABLE} == {"expected by reading", "proved by compile", "unmeasured", "refused"}


def test_exact_engines_are_compared_with_stock() -> None:
    low, high = to_stock(0.8)
    assert (low, high) == (pytest.approx(0.8 / 0.69), pytest.approx(0.8 / 0.65))
