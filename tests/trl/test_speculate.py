"""`das.speculate()`: what it refuses and warns of, and that it can be ended. test_wheel.py runs README's program."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer
from trl.trainer.base_trainer import _BaseTrainer

import das
from das.engine import versions
from das.general.errors import EngineError
from das.trl import speculate, trainers
from das.trl.generation import SpeculativeGeneration

HOOKS = ("__init__", "_generate_and_score_completions")


def hooks_of_trl() -> list[Any]:
    of_trainers = [getattr(trainer, name) for trainer in (GRPOTrainer, RLOOTrainer) for name in HOOKS]
    new_trainers = vars(_BaseTrainer).get("__init_subclass__")
    return [vllm_generation.VLLMGeneration, grpo_trainer.VLLMGeneration, new_trainers, *of_trainers]


@pytest.fixture(autouse=True)
def trl_untouched_afterwards() -> Iterator[None]:
    before = hooks_of_trl()
    yield
    das.speculate("off")
    assert hooks_of_trl() == before


def build_trainer(policy: str, folder: Path, columns: dict[str, Any] | None = None, **arguments: Any) -> GRPOTrainer:
    """A trainer as scripts build it."""
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": ["p"] * 8, **(columns or {})})
    args = GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **arguments)
    return GRPOTrainer(model=policy, reward_funcs=lambda **columns: [0.0], args=args, train_dataset=rows)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "magic"}, EngineError, "choose none, das, self_draft, ngram"),
        ({"drafter": {"unit": "week"}}, ValueError, "choose epoch or step"),
        ({"engine": {"slots": 3}}, TypeError, "slots"),
        ({"method": "off", "budget": {"name": "fixed"}}, ValueError, "takes no options"),
        ({"lag": -1}, ValueError, "lag=-1: give a whole number"),
    ],
)
def test_bad_options_are_refused_before_anything_is_patched(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = hooks_of_trl()
    with pytest.raises(error, match=message):
        das.speculate(**options)
    assert hooks_of_trl() == before


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(versions, "installed", lambda *names: "0.9.9")
        with pytest.raises(versions.UnsupportedVersion, match=r"vllm 0\.9\.9: das supports 0\.32\.0"):
            _ = das.speculate


def test_off_gives_trl_back() -> None:
    before = hooks_of_trl()
    das.speculate()
    das.speculate("none")  # replaces the first call
    assert hooks_of_trl()[:2] == before[:2]  # replaced only while a trainer is built
    assert hooks_of_trl() != before
    das.speculate("off")
    assert hooks_of_trl() == before
    das.speculate("off")
    assert hooks_of_trl() == before


def test_trainers_without_vllm(tiny_policy: str, tmp_path: Path) -> None:
    """While das.speculate() is on, they are refused when they are built, and when they were built before."""
    earlier = build_trainer(tiny_policy, tmp_path)
    das.speculate()
    with pytest.raises(EngineError, match=r"use_vllm=True .* call das\.speculate\(\) before it is built"):
        build_trainer(tiny_policy, tmp_path)
    with pytest.raises(EngineError, match=r"call das\.speculate\(\) before it is built"):
        earlier._generate_and_score_completions([])
    das.speculate("off")
    plain = build_trainer(tiny_policy, tmp_path)
    assert not isinstance(getattr(plain, "vllm_generation", None), SpeculativeGeneration)


@pytest.mark.parametrize("options", [{"drafter": {"window": 2}}, {"budget": {"name": "fixed", "tokens": 2}}])
def test_options_that_a_server_would_ignore(options: dict[str, Any], tiny_policy: str, tmp_path: Path) -> None:
    das.speculate(**options)
    (name,) = options
    with pytest.raises(EngineError, match=f"the server has its own {name}: give them to its --speculative-config"):
        build_trainer(tiny_policy, tmp_path, use_vllm=True, vllm_mode="server")


def test_servers_need_the_newest_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """das_gloo cannot be built with the others."""
    speculate._require_server([])
    monkeypatch.setattr(speculate, "installed", lambda *names: "0.27.1")
    with pytest.raises(EngineError, match=r'vllm_mode="server" needs vllm 0\.32\.0, and this is 0\.27\.1'):
        speculate._require_server([])


@pytest.mark.parametrize("module", ["trl.trainer.rloo_trainer.RLOOTrainer", "trl.experimental.gmpo.GMPOTrainer"])
def test_a_lag_is_refused_by_other_trainers(module: str) -> None:
    module, name = module.rsplit(".", 1)
    das.speculate(lag=1)
    trainer = getattr(importlib.import_module(module), name)
    with pytest.raises(EngineError, match=rf"^lag=1: only GRPOTrainer has rollouts ahead, and this is a {name}: leave"):
        trainer(model="m", reward_funcs=[], args=SimpleNamespace())


def test_trainings_that_have_no_lag(tiny_policy: str, tmp_path: Path) -> None:
    """They are refused before an engine is built."""
    das.speculate(lag=1)
    with pytest.raises(EngineError, match=r'^lag=1: .*set vllm_mode="colocate"'):
        build_trainer(tiny_policy, tmp_path, use_vllm=True, vllm_mode="server")
    with pytest.raises(EngineError, match=r"^lag=1: .*each step needs a rollout of its own"):
        build_trainer(tiny_policy, tmp_path, use_vllm=True, num_iterations=2)
    with pytest.raises(EngineError, match=r"^lag=1: .*this dataset has images"):
        build_trainer(tiny_policy, tmp_path, {"image": [0] * 8}, use_vllm=True)


@pytest.mark.parametrize("full_name", sorted(trainers.REFUSED.keys() - trainers.OLDER.keys()))
def test_trainers_that_are_refused_by_name(full_name: str) -> None:
    das.speculate()
    module, name = full_name.rsplit(".", 1)
    refused = getattr(importlib.import_module(module), name)
    with pytest.raises(EngineError, match=rf'^{name} .*: call das\.speculate\("off"\) before it is built$'):
        type("Own", (refused,), {})()
    das.speculate("off")
    assert not hasattr(refused.__init__, "__wrapped__")


def test_trainers_that_are_imported_later_are_known_too() -> None:
    """Experimental trainers take seconds to import, so das.speculate() does not."""

    def imported() -> type:
        body = {"__module__": "trl.trainer.rloo_trainer", "__init__": lambda self: None, HOOKS[1]: lambda self: None}
        return type("RLOOTrainer", (_BaseTrainer,), body)

    das.speculate()
    with pytest.raises(EngineError, match="this RLOOTrainer does not roll out with das: give"):
        imported()()
    das.speculate("off")
    imported()()


def test_every_name_exists() -> None:
    """A trainer that TRL renames would roll out without das."""
    for full_name in (*trainers.ROLLS_OUT, *(trainers.REFUSED.keys() - trainers.OLDER.keys())):
        module, name = full_name.rsplit(".", 1)
        trainer = getattr(importlib.import_module(module), name)
        assert trainers.full_name(trainer) == full_name
        assert "__init__" in vars(trainer)
        assert full_name in trainers.REFUSED or trainers.METHOD in vars(trainer)
