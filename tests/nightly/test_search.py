"""The ladder on generated batches of up to 20 requests, each cold, warm and in another order: a search, at night."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from cases import BATCHES, MAX_MODEL_LEN, Case, answers
from conftest import Engines
from hypothesis import given
from hypothesis import strategies as st
from identity.ladder import METHODS, built, examples, permuted

EXAMPLES = int(os.environ.get("IDENTITY_EXAMPLES", "48"))
_baselines: dict[str, Any] = {}  # the engine without drafts of a policy


def undrafted(policy: str, batch: list[Case]) -> list[Any]:
    """The answers without drafts. Runs in the baseline's process."""
    if policy not in _baselines:
        _baselines[policy] = Engines().build(policy, max_model_len=MAX_MODEL_LEN, max_num_seqs=24)
    return answers(_baselines[policy], batch)[0]


@pytest.mark.parametrize("name", [name for name in METHODS if "distributions" not in name and "model" not in name])
def test_drafts_change_nothing(
    engines: Engines, in_process: Callable[..., Any], tiny_policy: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend("examples")
    llm = built(engines, tiny_policy, METHODS[name])
    tick = num_accepted = 0

    @examples(EXAMPLES)
    @given(batch=BATCHES, order=st.randoms(use_true_random=False))
    def searched(batch: list[Case], order: random.Random) -> None:
        nonlocal tick, num_accepted
        expected = in_process(undrafted, tiny_policy, batch)
        tick += 5  # the window forgets the example before: examples must not depend on each other
        for permutation in (None, None, permuted(batch, order)):
            responses, report = answers(llm, batch, permutation, tick)
            assert responses == expected
            num_accepted += report["accepted"]

    searched()
    assert num_accepted >= METHODS[name].accepted
