"""A script of TRL that resumes, in any step of any epoch, ends as the one that was left alone: rows, tokens, drafts,
losses and weights. TRL's own checkpoints lack the order of later epochs, a rollout that steps share, and the history.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trl_runs import COMMON, GROUPS, one_engine, reward

from das.general import ranks
from das.general.errors import EngineError
from das.trl.lag import StepRollouts
from das.trl.resume import ScriptCheckpoints
from experiments.digests import weights_digest

pytestmark = pytest.mark.slow

STEPS = 7
PROBLEMS = 7  # two a step: three steps an epoch, and one row is left out
Run = Callable[..., dict[int, Any]]


@pytest.fixture(scope="module")
def run(repetitive_policy: str) -> Iterator[Run]:
    """Trains with a script's own trainer. Returns by step what it trained on, what it drafted and logged, and under 0
    the final weights."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    with one_engine() as speculate:
        speculate("das")

        def train(folder: Path, resume: Path | None = None, rows: int = PROBLEMS, **arguments: Any) -> dict[int, Any]:
            asked = [[{"role": "user", "content": f"what is {n} + {n + 3}?"}] for n in range(rows)]
            settings = {**COMMON, **GROUPS, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, **arguments}
            trainer = GRPOTrainer(
                model=repetitive_policy,
                reward_funcs=reward,
                args=GRPOConfig(output_dir=str(folder), **settings),
                train_dataset=Dataset.from_dict({"prompt": asked}),
            )
            done: dict[int, Any] = {}

            class Notes(TrainerCallback):
                def on_step_end(self, args: Any, state: Any, *others: Any, **kwargs: Any) -> None:
                    last = trainer.vllm_generation.last
                    made = last is not None and last.step == state.global_step - 1
                    problems = [each.problem for each in last.finished] if made else []
                    done[state.global_step] = [problems, last.responses, last.report.drafted] if made else []

            trainer.add_callback(Notes())
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
            for log in trainer.state.log_history:
                if "grad_norm" in log and log["step"] in done:
                    done[log["step"]] += [log["loss"], log["grad_norm"]]
            return {**done, 0: weights_digest(trainer.model)}

        yield train


@pytest.fixture(scope="module")
def alone(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Any]]:
    """The run that is left alone, and its folder with a checkpoint of each step."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, run(folder)


def from_step(step: int, done: dict[int, Any]) -> dict[int, Any]:
    return {number: found for number, found in done.items() if number == 0 or number > step}


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.nightly), 4])  # at the end of an epoch, in the next
def test_it_ends_as_the_run_left_alone(step: int, run: Run, alone: tuple[Path, dict[int, Any]], tmp_path: Path) -> None:
    folder, done = alone
    assert len({str(sorted(done[number][0])) for number in range(1, STEPS + 1)}) > 3, "epochs differ in their order"
    assert sum(done[number][2] for number in range(step + 1, STEPS + 1)) > 0, "it drafts"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "resumed")
        assert run(tmp_path, folder / f"checkpoint-{step}") == from_step(step, done)


def test_a_checkpoint_without_the_folder_of_das(run: Run, alone: tuple[Path, dict[int, Any]], tmp_path: Path) -> None:
    """As plain TRL writes it: rows, tokens and weights are the same, and one line says that drafts begin anew."""
    folder, done = alone
    shutil.copytree(folder / "checkpoint-4", tmp_path / "checkpoint-4")
    shutil.rmtree(tmp_path / "checkpoint-4" / "das")
    with pytest.warns(RuntimeWarning, match="checkpoint-4 holds no state of das .* history begins empty"):
        resumed = run(tmp_path / "out", tmp_path / "checkpoint-4")
    for number in range(5, STEPS + 1):
        del resumed[number][2]
    tokens = {number: [*found[:2], *found[3:]] if number else found for number, found in done.items()}
    assert resumed == from_step(4, tokens)


def test_a_rollout_that_steps_share(run: Run, tmp_path: Path) -> None:
    """Step 6 is in the second epoch and trains on the other half of the rollout of step 5."""
    shared = {"rows": 9, "steps_per_generation": 4}
    done = run(tmp_path / "alone", **shared)
    assert [bool(done[number][:-2]) for number in range(1, STEPS + 1)] == [True, False] * 3 + [True]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "resumed")
        assert run(tmp_path / "out", tmp_path / "alone" / "checkpoint-5", **shared) == from_step(5, done)


def test_other_rows_are_named(run: Run, alone: tuple[Path, dict[int, Any]], tmp_path: Path) -> None:
    folder, _ = alone
    with pytest.warns(
        RuntimeWarning, match="other rows or weights than without the stop, because rows was 7 and is 9, seed was 42"
    ):
        run(tmp_path, folder / "checkpoint-6", rows=9, seed=7)


def of_adapters_on_a_stream(folder: Path) -> Any:
    """A trainer without an engine, that resumes from this folder."""
    (folder / "trainer_state.json").write_text('{"epoch": 1.07, "global_step": 4}')
    trainer: Any = SimpleNamespace(
        train_dataset=iter(()),
        model=SimpleNamespace(peft_config={"default": None}),
        args=SimpleNamespace(seed=1, gradient_accumulation_steps=1),
        num_iterations=1,
        vllm_generation=SimpleNamespace(
            engine=SimpleNamespace(method="das", row=SimpleNamespace(drafts=True)), rollouts=0
        ),
        _inner_training_loop=lambda **kwargs: "ran",
        _get_train_sampler=None,
        _save_checkpoint=None,
    )
    ScriptCheckpoints(trainer, StepRollouts(trainer))
    return trainer


def test_what_is_not_restored_is_named(tmp_path: Path) -> None:
    """A stream that had begun anew: transformers counts `max_steps` as one epoch of it, and skips more rows than a pass
    has. Frozen weights under adapters, which drift by rounding. A state of das that cannot be read."""
    trainer = of_adapters_on_a_stream(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert trainer._inner_training_loop(resume_from_checkpoint=str(tmp_path)) == "ran"
    texts = [str(warning.message) for warning in caught]
    beginnings = ("the stream had ended", "adapters are trained", f"{tmp_path} holds no state of das")
    assert len(texts) == len(beginnings)
    assert all(text.startswith(f"resumed: {begins}") for text, begins in zip(texts, beginnings, strict=True))
    (tmp_path / "das").mkdir()
    (tmp_path / "das" / "about.json").write_text("{")
    with pytest.raises(EngineError, match=r"about\.json cannot be read .*: delete its folder, to resume without"):
        trainer._inner_training_loop(resume_from_checkpoint=str(tmp_path))


def test_a_rank_without_a_state_counts_rollouts_as_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were fewer ranks, or its folder was deleted. With another count its responses would have other history
    ticks, and it would refuse those of the others."""
    trainer = of_adapters_on_a_stream(tmp_path)
    monkeypatch.setattr(ranks, "gather", lambda own: [9, own])
    with warnings.catch_warnings(action="ignore"):
        trainer._inner_training_loop(resume_from_checkpoint=str(tmp_path))
    assert trainer.vllm_generation.rollouts == 9
