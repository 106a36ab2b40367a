"""An engine says itself which of vLLM's model runners it runs on, and what is not ported is refused in one line."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.platforms import current_platform

import das
from das.engine.contract import versions
from das.engine.engine_config import WORKER
from das.engine.patches import model_runner
from das.engine.patches.model_runner import asks_for_second
from das.engine.runners.choice import check_choice


def config(runner: str | None = "second", has_second: bool = True, **changes: Any) -> Any:
    """A VllmConfig as far as the choice reads it."""
    options = {} if runner is None else {"runner": runner}
    fields: dict[str, Any] = {
        "additional_config": {"das": options | changes.pop("das", {})},
        "use_v2_model_runner": has_second,
        "speculative_config": None,
        "parallel_config": SimpleNamespace(worker_cls=WORKER),
        "model_config": SimpleNamespace(uses_mrope=False),
    }
    return SimpleNamespace(**fields | changes)


def test_an_engine_of_das_chooses_and_others_do_not() -> None:
    assert asks_for_second(config())
    assert not asks_for_second(config("first"))
    assert not asks_for_second(config(None))
    assert not asks_for_second(config(parallel_config=SimpleNamespace(worker_cls="auto")))


def test_an_engine_that_names_none_gets_vllms_choice_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda platform: False)
    assert asks_for_second(config(None))
    check_choice(config(None))
    assert not asks_for_second(config("first"))
    monkeypatch.setattr(model_runner, "installed", lambda *names: "0.26.0")
    assert not asks_for_second(config(None))
    check_choice(config(None, has_second=False))


def test_the_choice_reaches_the_engine() -> None:
    assert das.engine_arguments("das", runner="second")["additional_config"]["das"]["runner"] == "second"
    assert "runner" not in das.engine_arguments("das")["additional_config"]["das"]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"runner": "third"}, "runner='third': choose first or second, or leave it out"),
        (
            {"asynchronous": True},
            "asynchronous=True: only chains on the second runner; set runner=second, branch_blocks=0",
        ),
        (
            {"asynchronous": True, "runner": "second", "branch_blocks": 8},
            "asynchronous=True: only chains on the second runner; set runner=second, branch_blocks=0",
        ),
    ],
)
def test_impossible_choices_are_one_line(asked: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        das.engine_arguments(**asked)


def test_an_engine_runs_on_the_runner_that_it_names() -> None:
    check_choice(config())
    check_choice(config(None, has_second=False))
    with pytest.raises(versions.NotInstalled, match="das needs vLLM's first model runner"):
        check_choice(config(None))
    with pytest.raises(versions.NotInstalled, match=r"engine.runner=second needs das.install\(\)"):
        check_choice(config(has_second=False))


def test_what_is_not_ported_is_named() -> None:
    line = "engine.runner=second: das has no method medusa there yet; set engine.runner=first"
    with pytest.raises(versions.NotInstalled, match=f"^{re.escape(line)}$"):
        check_choice(config(speculative_config=SimpleNamespace(method="medusa", model="head")))


def test_a_vllm_with_which_it_was_not_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda *names: "0.26.0")
    with pytest.raises(versions.UnsupportedVersion, match=r"vllm 0\.26\.0: engine\.runner=second needs 0\.32\.0"):
        check_choice(config())


def test_an_asynchronous_scheduler_has_room_for_the_longest_drafts() -> None:
    def asynchronous(asked: bool | None, tokens: int) -> bool:
        drafts = SimpleNamespace(model="das.engine.proposer.DasProposer", num_speculative_tokens=32)
        scheduler = SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=tokens)
        das_part = {"runner": "second", "asynchronous": asked}
        return model_runner._is_asynchronous(
            SimpleNamespace(additional_config={"das": das_part}, speculative_config=drafts, scheduler_config=scheduler)
        )

    assert asynchronous(True, 8448)
    assert not asynchronous(None, 8448), "a CPU has nothing to overlap"
    with pytest.raises(ValueError, match=r"set max_num_batched_tokens to 8448 or more \(it is 8192\)"):
        asynchronous(True, 8192)
