"""TRL with vllm_tensor_parallel_size=2: two ranks with one engine, which one of them drafts for (gloo, CPU)."""

from pathlib import Path
from typing import Any

import pytest
from scripts import RANK_RUN, TWO_RANKS, exact, of_ranks, run_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """none and das on two ranks that share an engine."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(*TWO_RANKS, RANK_RUN, "none,das", repetitive_policy, folder, "vllm_tensor_parallel_size=2")
    return folder


def test_drafts_change_nothing(folder: Path) -> None:
    none, das = (of_ranks(folder, each) for each in ("none", "das"))
    assert len(das) == 2
    assert exact(das) == exact(none)
    assert das[0]["weights"] == das[1]["weights"]
    assert sum(step["accepted"] for step in das[0]["steps"]) > 0
    assert all(step["drafted"] == 0 for step in none[0]["steps"])


def test_the_ranks_of_an_engine_take_the_drafts_of_the_first(folder: Path) -> None:
    """The drafter of each rank ends drafts elsewhere."""
    first, second = of_ranks(folder, "das")
    assert [step["requests"] for step in first["steps"]] == [step["requests"] for step in second["steps"]]
    assert all(step["history_tokens"] > 0 for step in first["steps"])
    assert all(step["history_tokens"] == 0 for step in second["steps"])
    assert (first["result"], second["result"]) == (True, False), "the first alone has a history to save"


def test_tokens_are_those_of_a_single_process(folder: Path, in_one_process: Any) -> None:
    """Two ranks add their parts of a sum in another order. Logits differ by that much, and seeds do not differ."""
    two = of_ranks(folder, "none")
    alone = in_one_process["steps"][0]  # later steps have other weights: gradients of two processes are averaged
    assert [row for rank in two for row in rank["steps"][0]["tokens"]] == alone["tokens"]
    logprobs = [value for rank in two for row in rank["steps"][0]["logprobs"] for value in row]
    assert logprobs == pytest.approx([value for row in alone["logprobs"] for value in row], abs=1e-4)
