"""The table of what is known of GPUs: the docs have it, and it claims what was measured."""

import pytest

from das.engine.contract.gpus import TABLE, invariance, markdown, to_stock
from experiments.run.errors import CONFIGS


def test_the_docs_have_the_table() -> None:
    assert markdown() in (CONFIGS.parent / "docs" / "compatibility.md").read_text()


def test_level_2_is_claimed_where_it_was_measured() -> None:
    claim = invariance("0.32.0")
    assert (claim.versions, claim.state) == (("0.32.0",), "measured")


def test_only_what_a_gpu_ran_is_measured() -> None:
    measured = {version for row in TABLE if row.state == "measured" for version in row.versions}
    assert measured == {"0.32.0"}


def test_exact_engines_are_compared_with_stock() -> None:
    low, high = to_stock(0.8)
    assert (low, high) == (pytest.approx(0.8 / 0.87), pytest.approx(0.8 / 0.65))
