"""Predicted times of passes on GPUs: the docs have the table, and it is an interval around the derived times."""

from itertools import product

import numpy as np
import pytest

from experiments.replay.hardware import MODELS, derived
from experiments.replay.predicted import CONTEXT, LIVE, exact_seconds, graph, markdown, stock_seconds
from experiments.run.errors import CONFIGS


def test_the_docs_have_the_table() -> None:
    assert markdown() in (CONFIGS.parent / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize(("gpu", "name", "live"), product(("H100", "H200"), ("7B", "8B"), LIVE))
def test_the_derived_time_lies_in_the_interval(gpu: str, name: str, live: int) -> None:
    low, high = stock_seconds(gpu, MODELS[name], live, 0, CONTEXT)
    (mean,) = derived(gpu, name).predict(*(np.array([float(n)]) for n in (live, live, live * CONTEXT)))
    assert low < mean < high


def test_graphs_and_the_flag_are_paid_for() -> None:
    assert [graph(1, 0), graph(64, 4), graph(256, 4)] == ["full", "full", "none"]
    stock, exact = (of("H100", MODELS["8B"], 64, 4, CONTEXT) for of in (stock_seconds, exact_seconds))
    assert exact[0] / stock[0] == pytest.approx(1 / 0.87)
    assert exact[1] / stock[1] == pytest.approx(1 / 0.65)
