"""Engines of das run on vLLM's second model runner, others on vLLM's choice; what cannot run is refused in one line."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Engines, roll
from vllm import SamplingParams

from das.engine.patches import model_runner
from das.engine.patches.model_runner import check_model_runner, is_of_das
from das.engine.settings import WORKER
from das.general.errors import NotInstalled


def config(**changes: Any) -> Any:
    """A VllmConfig as far as das reads it."""
    fields: dict[str, Any] = {
        "additional_config": {"das": changes.pop("das", {})},
        "use_v2_model_runner": True,
        "speculative_config": None,
        "parallel_config": SimpleNamespace(worker_cls=WORKER),
    }
    return SimpleNamespace(**fields | changes)


def test_engines_of_others_choose_by_themselves() -> None:
    assert is_of_das(config())
    assert not is_of_das(config(parallel_config=SimpleNamespace(worker_cls="auto")))


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"use_v2_model_runner": False}, "an engine of das needs das.install() (or das's plug-in) before it is built"),
        (
            {"speculative_config": SimpleNamespace(method="medusa", model="head")},
            "das does not know the speculative method medusa: choose none, ",
        ),
    ],
)
def test_what_cannot_run_is_one_line(asked: dict[str, Any], line: str) -> None:
    check_model_runner(config())
    with pytest.raises(NotInstalled, match=f"^{re.escape(line)}"):
        check_model_runner(config(**asked))


def test_an_asynchronous_scheduler_has_room_for_the_longest_drafts() -> None:
    def asynchronous(asked: bool | None, tokens: int) -> bool:
        drafts = SimpleNamespace(model="das.engine.proposer.DasProposer", num_speculative_tokens=32)
        scheduler = SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=tokens)
        asking = config(das={"asynchronous": asked}, speculative_config=drafts, scheduler_config=scheduler)
        return model_runner._is_asynchronous(asking)

    assert asynchronous(True, 8448)
    assert not asynchronous(None, 8448), "a CPU has nothing to overlap"
    with pytest.raises(ValueError, match=r"set max_num_batched_tokens to 8448 or more \(it is 8192\)"):
        asynchronous(True, 8192)


def test_a_prompt_that_is_cached_has_no_rows_of_drafts(engines: Engines, repetitive_policy: str) -> None:
    """vLLM plans a draft for a new request of which all but one token is cached."""
    prompt = np.random.default_rng(0).integers(6, 250, size=65).tolist()  # two blocks and a token
    drafter, budget = {"min_prob": 0.0}, {"name": "fixed", "tokens": 32}
    llm = engines.fresh(repetitive_policy, method="das", drafter=drafter, budget=budget, extra={"block_size": 32})
    for tick in range(2):
        params = [SamplingParams(temperature=1.0, max_tokens=20, seed=9 * tick + i) for i in range(4)]
        *_, report = roll(llm, [prompt] * 4, params, ["0"] * 4, tick)
    assert report["undrafted_rows"] > 0, "vLLM planned none: the test would prove nothing"
    assert report["step_live"][0] == report["step_tokens"][0] == 4
    assert report["drafted"] > 0
