"""The generation backend without its engine: seeds of requests, problem ids, the drafter's window, refusals."""

import math
import warnings
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from PIL import Image
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.checked_policies import Policy
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed
from das.general.errors import EngineError, WeightSyncError
from das.trl import generation
from das.trl.dataset_rows import problem_id, require_batch, require_fitting
from das.trl.engines import NewWeights
from das.trl.engines.in_process import DasEngine, tensor_parallel_group
from experiments.training.generation import HarnessGeneration


def backend(unit: str = "epoch", **attributes: Any) -> Any:
    """A SpeculativeGeneration whose engine was never built."""
    without_engine: Any = object.__new__(generation.SpeculativeGeneration)
    counters = {"rollouts": 0, "history_tick": 0}
    usual = {
        "model": torch.nn.Linear(2, 2),
        "_held": None,
        "_is_current": True,
        "several_turns": False,
        "_turns": [],
        "logprobs": None,
        "weight_sample": None,
        "_here": SimpleNamespace(announced=True),
    }
    vars(without_engine).update(history_unit=unit, **counters, **usual | attributes)
    return without_engine


def trainer(problems: int, training: bool = True, processes: int = 1) -> Any:
    return SimpleNamespace(
        args=SimpleNamespace(seed=5),
        state=SimpleNamespace(global_step=3),
        model=SimpleNamespace(training=training),
        _last_loaded_step=3,
        accelerator=SimpleNamespace(num_processes=processes),
        num_generations=4,
        train_dataset=range(problems),
    )


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[RolloutRequest]:
    """What backends without an engine would have rolled out."""
    requested: list[RolloutRequest] = []

    def roll_out(engine: Any, request: RolloutRequest) -> Any:
        requested.append(request)
        return [], Rollout(request.step, [], 1.0, RolloutReport(passes=1))

    def generate(backend: Any, prompts: Any, *rest: Any) -> Any:
        backend.llm.generate(prompts, None)
        return None, None, [], None

    monkeypatch.setattr(DasEngine, "roll_out", roll_out)
    monkeypatch.setattr(VLLMGeneration, "generate", generate)
    return requested


def ready_backend(process: int, processes: int, **attributes: Any) -> Any:
    """A backend of this process, for `generate`."""
    accelerator = SimpleNamespace(process_index=process, num_processes=processes)
    engines = DasEngine(None)
    engines.ranks_together = 1
    usual: dict[str, Any] = {"engines": engines, "schedule": None, "evaluation": False}
    return backend(run_seed=7, _counted_in=(0, False), _requests=0, accelerator=accelerator, **usual | attributes)


def test_calls_of_one_step_get_different_seeds(requests: list[RolloutRequest]) -> None:
    """An evaluation generates several batches in one step. With equal seeds all of them would draw the same noise."""
    calls = ready_backend(process=1, processes=2, problems=["p", "q"])
    for calls.step, calls.evaluation in [(3, False), (3, True), (3, True), (4, False)]:
        calls._here.announced = True
        calls.generate([{}, {}], None, 1)
    places = [(3, 2, False), (3, 3, False), (3, 2, True), (3, 3, True), (3, 6, True), (3, 7, True), (4, 2, False)]
    seeds = [seed for request in requests for seed in request.seeds]
    assert seeds[:7] == [request_seed(7, *place) for place in places]
    assert len(set(seeds)) == 8


def test_processes_that_cannot_share_engines_are_refused() -> None:
    with pytest.raises(EngineError, match=r"vllm_tensor_parallel_size=2: launch a multiple of 2 processes, not 3"):
        tensor_parallel_group(2, num_processes=3)


@pytest.mark.parametrize(
    ("unit", "rows", "problems", "processes", "ticks"),
    [
        ("epoch", 8, 5, 1, [0, 1, 1, 2]),
        ("epoch", 8, 8, 2, [0, 1, 1, 2]),
        ("step", 8, 5, 1, [1, 2, 3, 4]),
        # Two ranks: of one group of four each has a half, or of three groups one and a half. A stream has no length.
        ("epoch", 2, 4, 2, [0, 0, 0, 1]),
        ("epoch", 6, 6, 2, [0, 1, 1, 2]),
        ("epoch", 2, 0, 2, [1, 2, 3, 4]),
    ],
)
def test_the_window_moves_with_the_training(
    unit: str, rows: int, problems: int, processes: int, ticks: list[int]
) -> None:
    announced, asking, seen = backend(unit), trainer(problems, processes=processes), []
    asking.train_dataset = asking.train_dataset or iter(())
    for _ in range(4):
        announced.announce(asking, [{"prompt": str(i // 4)} for i in range(rows)])
        seen.append(announced.history_tick)
        assert (announced.run_seed, announced.step, announced.evaluation) == (5, 3, False)
        announced.announce(trainer(problems, training=False), [{"prompt": "evaluation"}] * 3)
        assert announced.evaluation
        assert len(announced.problems) == 3
        assert announced.history_tick == seen[-1]
    assert seen == ticks


def image(shade: int) -> Image.Image:
    return Image.new("L", (2, 2), shade)


def row(given: Any = None, prompt: Any = "p", **columns: Any) -> dict[str, Any]:
    return {"prompt": prompt, "problem_id": given, **columns}


MISSING = (None, math.nan, np.float32("nan"), "  ", pandas.NA, pandas.NaT)
THREE = (3, "3", 3.0, " 3 ", np.int64(3), np.float32(3), np.str_("3"), Decimal(3))
OWN: list[Any] = [0, 3.5, -3, 2**70, float(2**53), math.inf, True, "03", "3.0", "p" * 513, "q" * 513, "\ud800", (1, 2)]
# Rows by problem.
PROBLEMS: list[list[dict[str, Any]]] = [
    [{"prompt": "p"}, *map(row, MISSING)],
    [row(prompt="other"), row(prompt="other", answer=1)],
    [row(prompt=[{"role": "user", "content": "p"}], answer=answer) for answer in (1, 2)],
    [row(given, prompt) for given in THREE for prompt in "pq"],
    *([row(given)] for given in OWN),
    *([row(image=image(shade)) for _ in range(2)] for shade in (1, 2)),
    *([row(images=[image(shade)])] for shade in (3, 4)),
]


def test_problems_are_told_apart_by_id_or_prompt_and_images() -> None:
    """A row without an id has it as pandas or JSON have it, and pandas makes floats of whole numbers beside it."""
    ids = [{problem_id(row) for row in rows} for rows in PROBLEMS]
    assert [len(each) for each in ids] == [1] * len(PROBLEMS)
    assert len(set.union(*ids)) == len(PROBLEMS)
    assert all(len(name.encode()) <= 512 for name in set.union(*ids)), "the engine takes no longer ones"


def asks(lengths: list[int], room_for: int = 8, **columns: Any) -> Any:
    """A trainer whose prompts have so many tokens: one for each letter, and three of the chat template."""
    prompts = [[{"role": "user", "content": "x" * (length - 3)}] for length in lengths]
    return SimpleNamespace(
        _tokenize_prompts=lambda asked: ([[1] * (3 + len(prompt[0]["content"])) for prompt in asked], None, {}),
        train_dataset=Dataset.from_dict({"prompt": prompts, **columns}),
        eval_dataset=None,
        max_completion_length=room_for,
    )


def test_a_prompt_that_does_not_fit_is_named_before_the_start() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_fitting(asks([10] * 300 + [92]), 100)
        require_fitting(asks([200], image=["i"]), 100)
    with pytest.raises(EngineError) as refused:
        require_fitting(asks([10] * 300 + [4000, 99, 100, 10]), 100)
    assert str(refused.value) == (
        "train_dataset: the prompt of row 300 has 4,000 tokens, and the engine takes 99 (2 rows are so long): leave "
        "them out, or raise vllm_max_model_length"
    )
    with pytest.warns(
        RuntimeWarning, match=r"row 1 has 95 tokens, which leaves 5 for a response of max_completion_leng"
    ):
        require_fitting(asks([10, 95]), 100)
    held_out = asks([10])
    held_out.eval_dataset = {"hard": asks([10, 100]).train_dataset}
    with pytest.raises(EngineError, match=r"^eval_dataset\['hard'\]: the prompt of row 1 has 100 tokens"):
        require_fitting(held_out, 100)


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_prompt_is_named_before_the_start(empty: Any) -> None:
    trainer = asks([10])
    trainer._tokenize_prompts = lambda asked: ([[1] * len(prompt) for prompt in asked], None, {})
    filled: Any = "ask" if empty == "" else [{"role": "user", "content": "ask"}]
    trainer.train_dataset = Dataset.from_dict({"prompt": [filled, empty, filled, empty]})
    with pytest.raises(
        EngineError, match=r"^train_dataset: the prompt of row 1 is empty, .* \(2 rows are empty\): leav"
    ):
        require_fitting(trainer, 100)
    trainer._tokenize_prompts = lambda asked: ([[0] + [1] * len(prompt) for prompt in asked], None, {})
    if empty == "":
        require_fitting(trainer, 100)  # the tokenizer begins every text with a token


def test_a_dataset_that_fills_no_batch_and_a_seed_of_its_own_are_named_before_the_start() -> None:
    args = SimpleNamespace(generation_batch_size=16, generation_kwargs={"seed": 0})
    with (
        pytest.raises(EngineError, match=r"^train_dataset has 3 rows, and a batch takes 4 prompts"),
        pytest.warns(RuntimeWarning, match=r"each response has a seed of its own, made from args.seed"),
    ):
        require_batch(args, 3, 4)
    args.generation_kwargs = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_batch(args, 4, 4)
        require_batch(args, None, 4)


class Loads(DasEngine):
    """An engine that notes which weights it gets."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(None)
        self.policy, self.model = Policy("float32", True, 2**20, True), model
        self.got: list[float] = []

    def load_weights(self, new: NewWeights) -> str:
        self.got.append(float(next(self.model.parameters()).sum()))
        return ""


@pytest.mark.parametrize("ahead", [False, True])
def test_weights_that_change_without_a_step_are_loaded(requests: list[RolloutRequest], ahead: bool) -> None:
    """However they are written: torch counts writes to a parameter, but not those to its `data`."""
    engines = Loads(model := torch.nn.Linear(2, 2))
    announced = ready_backend(
        0, 1, model=model, engines=engines, enable_sleep_mode=False, last=Rollout(3, [], 1.0, RolloutReport())
    )
    weight, asking = announced.model.weight, trainer(4, training=ahead)
    asking._tokenize_prompts = lambda prompts: (prompts, None, {})

    def roll_out() -> None:
        """As TRL does at the same step, or as rollouts ahead of it do."""
        if ahead:
            announced.submit(asking, [{"prompt": "p"}] * 4, 3).result()
            return
        announced.announce(asking, [{"prompt": "p"}])
        if asking._last_loaded_step != asking.state.global_step:
            announced.sync_weights()
            asking._last_loaded_step = asking.state.global_step
        announced.generate([{}], None, 1)

    changes: list[Any] = [
        lambda: None,
        lambda: weight.data.mul_(2),
        lambda: None,
        lambda: announced.model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}),
        lambda: setattr(weight, "data", torch.full((2, 2), 3.0)),
        lambda: announced.model.bias.data.neg_(),
        lambda: None,
    ]
    counts = []
    for change in changes:
        change()
        roll_out()
        assert engines.got[-1] == float(weight.sum())
        counts.append(len(engines.got))
    assert counts == [1, 2, 2, 3, 4, 5, 5]


def test_a_rollout_with_older_weights_than_the_trainers_is_refused(requests: list[RolloutRequest]) -> None:
    """A trainer's own method may leave the sync out."""
    announced = ready_backend(0, 1)
    announced.announce(trainer(4), [{"prompt": "p"}] * 4)
    with pytest.raises(WeightSyncError, match=r"^step 3: .* nothing synced them: call .*sync_weights\(\)"):
        announced.generate([{}], None, 1)
    assert not requests


def test_an_engine_that_sleeps_is_woken_for_an_evaluation_and_sleeps_again() -> None:
    """TRL wakes it for its own rollouts only."""
    calls: list[Any] = []

    class Sleeps(Loads):
        def roll_out(self, request: Any) -> Any:
            calls.append("roll out")
            return [], None

    engines = Sleeps(model := torch.nn.Linear(2, 2))
    engines.llm = SimpleNamespace(wake_up=lambda tags: calls.append(tags), sleep=lambda level: calls.append(level))
    asked = ready_backend(0, 1, model=model, engines=engines, enable_sleep_mode=True, evaluation_sample=None, sync=None)
    asked.__class__ = HarnessGeneration
    asked.evaluate(RolloutRequest([], None, [], [], 3, 3, evaluation=True))
    assert (calls, len(engines.got), asked._llm_weights_sleeping) == ([["kv_cache"], "roll out", 2], 1, True)
