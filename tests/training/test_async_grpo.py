"""AsyncGRPOTrainer with das: drafts change no bit, nothing is dropped, and packed rows attend as they should."""

import itertools
import multiprocessing
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.thread import _threads_queues
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

import das
from das.engine.build import EngineError
from das.engine.patches import trl_trainers
from das.engine.rollout import Rollout
from das.training import fixed_lag_worker
from das.training.digests import weights_digest
from das.training.engine_process import EngineProcess
from das.training.errors import EngineDied
from das.training.fixed_lag_worker import FixedLagWorker
from das.training.lag import FinishedRollout, Sync, done
from das.training.tree_attention import tree_sdpa, use_tree_sdpa

ROOT = Path(__file__).parents[2]
STEPS = 6
ROWS = 5  # prompts; a step takes 2, so the dataset is begun again amid a step
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 40,
    "token_budget": 0,
    "learning_rate": 0.002,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


@pytest.fixture(autouse=True)
def trl_untouched_afterwards() -> Iterator[None]:
    yield
    das.speculate("off")


def reward(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
    return [float(len(set(ids)) - ids[0] % 7 + right) for ids, right in zip(completion_ids, answer, strict=True)]


def built(policy: str, folder: Path, rewarded: Callable[..., list[float]] = reward, **changes: Any) -> Any:
    """An AsyncGRPOTrainer, as a script would build it. changes: of its config."""
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    asked = [[{"role": "user", "content": f"what is {n} + {n + 3}?"}] for n in range(ROWS)]
    return AsyncGRPOTrainer(
        model=policy,
        reward_funcs=rewarded,
        args=AsyncGRPOConfig(output_dir=str(folder), **{**SETTINGS, **changes}),
        train_dataset=Dataset.from_dict({"prompt": asked, "answer": list(range(ROWS))}),
    )


def speculate(method: str, lag: int) -> None:
    engine = {"max_model_len": 128, "extra": {"num_gpu_blocks_override": 256}}
    das.speculate(method, budget={"name": "fixed", "tokens": 8}, engine=engine, lag=lag)


def train(policy: str, folder: Path, method: str, lag: int) -> dict[str, Any]:
    """Train, and return what must be equal in all bits, and what was drafted."""
    groups: list[tuple[int, list[list[int]]]] = []

    def noted(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
        groups.append((answer[0], completion_ids))
        return reward(completion_ids, answer, **columns)

    speculate(method, lag)
    trainer = built(policy, folder, noted)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    generation = trainer.rollout_worker.generation
    return {
        "exact": {
            "responses": [ids for _, ids in groups],
            "losses": [(log["loss"], log["grad_norm"], log["reward"], log["ratio"]) for log in logs],
            "weights": weights_digest(trainer.model),
        },
        "rows": [row for row, _ in groups],
        "logs": logs,
        "drafted": generation.num_drafted,
        "accepted": generation.num_accepted,
    }


@pytest.fixture(scope="module")
def runs(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `train` returns, by method and lag."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = [("none", 1), ("das", 1), ("das again", 1), ("none", 2), ("das", 2)]
    try:
        return {
            f"{name} {lag}": train(repetitive_policy, folder, name.removesuffix(" again"), lag) for name, lag in wanted
        }
    finally:
        das.speculate("off")


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("none 1", "das 1"), ("none 2", "das 2"), ("das 1", "das again 1")])
def test_no_bit_differs(runs: dict[str, Any], one: str, other: str) -> None:
    assert runs[one]["exact"] == runs[other]["exact"]
    assert runs[other]["accepted"] > 0
    assert runs["none 1"]["drafted"] == runs["none 2"]["drafted"] == 0


@pytest.mark.slow
def test_lags_differ_from_the_first_rollout_of_other_weights(runs: dict[str, Any]) -> None:
    """Lag 1 samples two steps with the first weights, lag 2 three. A step has two groups."""
    one, two = (runs[name]["exact"]["responses"] for name in ("das 1", "das 2"))
    assert one[:4] == two[:4]
    assert one[4:6] != two[4:6]
    assert runs["das 1"]["exact"]["weights"] != runs["das 2"]["exact"]["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
def test_each_step_trains_on_its_own_rollout(runs: dict[str, Any], lag: int) -> None:
    run = runs[f"das {lag}"]
    assert run["rows"] == [number % ROWS for number in range(2 * (STEPS + 1))]  # one rollout for what is fetched ahead
    logs = run["logs"]
    assert len(logs) == STEPS
    assert [log["sample/staleness_max"] for log in logs][lag:] == [lag] * (STEPS - lag)
    assert not any("dropped" in name for log in logs for name in log)
    assert all(log["batch/samples_per_step"] == 8 and log["grad_norm"] > 0 for log in logs)
    assert logs[0]["ratio"] == pytest.approx(1, abs=1e-4)  # of the weights that sampled
    assert max(abs(log["ratio"] - 1) for log in logs[1:]) > 1e-4
    assert all(log["das/drafted"] >= log["das/accepted"] for log in logs)


@pytest.mark.slow
def test_what_goes_wrong_beside_the_training_stops_it(repetitive_policy: str, tmp_path: Path) -> None:
    """A reward function that fails, an engine that dies, and samples that TRL leaves out."""

    def wrong(prompts: list[Any], **columns: Any) -> list[float]:
        raise ZeroDivisionError("no reward for this")

    class Kill(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            (engine,) = [child for child in multiprocessing.active_children() if child.name == "engine"]
            engine.kill()

    speculate("das", lag=1)
    failing = built(repetitive_policy, tmp_path, wrong)
    with pytest.raises(ZeroDivisionError, match="no reward for this"):
        failing.train()
    with pytest.raises(EngineError, match="trains once: build a new trainer"):
        failing.train()
    dying = built(repetitive_policy, tmp_path)
    dying.add_callback(Kill())
    with pytest.raises(EngineDied, match=r"the engine's process has died \(exit code -9"):
        dying.train()
    dropping = built(repetitive_policy, tmp_path)
    dropping.args.max_staleness = 0
    with pytest.raises(EngineError, match=r"TRL left samples out \(sample/dropped_stale_total\)"):
        dropping.train()
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "steps"), [(2, 0), (6, 1)])
def test_a_reward_that_fails_once_lets_no_step_train_on_other_rows(
    repetitive_policy: str, tmp_path: Path, failing: int, steps: int
) -> None:
    """The second group of the first rollout, and of the third: step 1 needs a micro-batch of that one."""
    calls = itertools.count(1)

    def once_wrong(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
        if next(calls) == failing:
            raise ZeroDivisionError("once")
        return reward(completion_ids, answer)

    speculate("das", lag=1)
    trainer = built(repetitive_policy, tmp_path, once_wrong)
    with pytest.raises(ZeroDivisionError, match="once"):
        trainer.train()
    assert trainer.state.global_step == steps
    assert trainer._trained_groups <= set(range(2 * (steps + 1) if steps else 0))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_training_that_ends_amid_a_rollout_ends_well(
    repetitive_policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An epoch is over before max_steps, which is only TRL's ceiling then."""
    speculate("das", lag=2)
    trainer = built(repetitive_policy, tmp_path, max_steps=-1, num_train_epochs=1, max_completion_length=100)
    worker = trainer.rollout_worker
    generation, unfinished = worker.generation, []
    close = generation.close

    def noting() -> None:
        unfinished.append(sum(not rollout.done() for rollout in worker._unscored))
        close()

    generation.close = noting
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trainer.train()
    assert (
        trainer.state.global_step == ROWS // 2 < trainer.state.max_steps
    )  # TRL counts the group that it fetched ahead
    assert unfinished[0] >= 1
    assert generation.llm._process.exitcode == 0  # it was not killed
    printed = capfd.readouterr().err
    assert "Traceback" not in printed
    assert "rror" not in printed


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_async_grpo
test_async_grpo.speculate("das", lag=1)
test_async_grpo.built({policy!r}, Path({folder!r}))
"""


@pytest.mark.slow
def test_a_script_that_runs_when_it_is_imported_is_told_so(repetitive_policy: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), policy=repetitive_policy, folder=str(tmp_path)))
    run = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith('(exit code 1; does the script lack `if __name__ == "__main__":`?)')


# ---- without an engine ----


@pytest.mark.parametrize(
    ("lag", "changes", "message"),
    [
        (1, {"token_budget": None}, "token_budget=None: .* set token_budget=0"),
        (1, {"token_budget": 4096}, "token_budget=4096: .* set token_budget=0"),
        (5, {}, "max_staleness=4: .* set it to 5 or more"),
        (1, {"weight_sync_steps": 2}, "weight_sync_steps=2: .* set it to 1"),
        (1, {"num_generations": 3}, "8 samples, which are no whole groups of 3"),
    ],
)
def test_what_the_clock_would_decide_is_refused(
    tiny_policy: str, tmp_path: Path, lag: int, changes: dict[str, Any], message: str
) -> None:
    das.speculate(lag=lag)
    with pytest.raises(EngineError, match=f"^AsyncGRPOTrainer with das: .*{message}"):
        built(tiny_policy, tmp_path, **changes)


@pytest.mark.parametrize("name", ["tools", "environment_factory", "peft_config", "rollout_worker", "weight_transfer"])
def test_arguments_that_are_refused(tiny_policy: str, name: str) -> None:
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    das.speculate()
    with pytest.raises(EngineError, match=f"^AsyncGRPOTrainer with das: {name}: "):
        AsyncGRPOTrainer(tiny_policy, reward, **{name: object()})


def test_a_cluster_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    das.speculate(cluster={"engines": 2})
    with pytest.raises(
        EngineError, match=r"^AsyncGRPOTrainer with das: it rolls out on one engine .* leave out cluster="
    ):
        built(tiny_policy, tmp_path)


def test_several_processes_are_refused(tiny_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    das.speculate()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EngineError, match=r"2 processes: .* launch one"):
        AsyncGRPOTrainer(tiny_policy, reward)


def worker_without_engine(policy: str, folder: Path, rewarded: Callable[..., list[float]]) -> FixedLagWorker:
    """A FixedLagWorker at lag 2 whose rollouts are finished when they are submitted."""

    def submit(
        trainer: Any, rows: Sequence[Any], prompts: list[list[int]], step: int, new_weights: bool
    ) -> "Future[FinishedRollout]":
        size = len(rows)
        counts = dict.fromkeys(("drafted", "draft_s", "draft_rounds", "decode_steps", "tail_steps", "draft_passes"), 0)
        request = {"passes": 3, "drafted": 0, "first_s": 0.5, "last_s": 1.0}
        responses, reasons = [[5, 6, 7]] * size, ["length"] * size
        rollout = Rollout(step, ["p"] * size, responses, reasons, [request] * size, 1.0, counts | {"passes": 3})
        return done(FinishedRollout(rollout, [[-1.0] * 3] * size, prompts, trainer.state.global_step, Sync(None, 0, 0)))

    with trl_trainers.built_on(torch.device("cpu")):
        trainer = built(policy, folder, rewarded, vllm_server_timeout=1)
    trainer.state.max_steps = STEPS
    generation: Any = SimpleNamespace(submit=submit, close=lambda: None)
    return FixedLagWorker(trainer, generation, lag=2, logged=())


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 6])
def test_a_failure_holds_back_all_later_samples(tiny_policy: str, tmp_path: Path, failing: int) -> None:
    calls = itertools.count(1)

    def once_wrong(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        if next(calls) == failing:
            raise ZeroDivisionError("once")
        return [1.0] * len(completion_ids)

    worker = worker_without_engine(tiny_policy, tmp_path, once_wrong)
    worker.start()  # three rollouts of two groups
    wait(worker._unscored)
    whole = (failing - 1) // 2  # rollouts before the one that fails
    assert [sample.group_id for sample in worker.rollout_buffer.queue] == [n // 4 for n in range(8 * whole)]
    with pytest.raises(ZeroDivisionError, match="once"):
        worker.update_model_version(2)
    worker.stop()


def test_what_is_done_is_forgotten_at_each_step(tiny_policy: str, tmp_path: Path) -> None:
    worker = worker_without_engine(tiny_policy, tmp_path, reward)
    worker.start()
    for worker._trainer.state.global_step in range(1, STEPS - 1):
        wait(worker._unscored)
        worker.update_model_version(worker._trainer.state.global_step + 1)
        assert len(worker._unscored) == 1
    wait(worker._unscored)
    samples = list(worker.rollout_buffer.queue)
    assert [sample.group_id for sample in samples] == [n // 4 for n in range(8 * (STEPS + 1))]
    assert [sample.model_version for sample in samples[::8]] == [1, 1, 1, 2, 3, 4, 5]
    worker.stop()


def test_a_reward_function_that_hangs_does_not_hold_the_end_up(
    tiny_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_lag_worker, "REWARDS_S", 0.2)
    others, hangs, answer = set(threading.enumerate()), threading.Event(), threading.Event()

    def judge(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        hangs.set()
        answer.wait()
        return [1.0] * len(completion_ids)

    worker = worker_without_engine(tiny_policy, tmp_path, judge)
    worker.start()
    rollouts = list(worker._unscored)
    assert hangs.wait(10)
    try:
        with pytest.warns(RuntimeWarning, match=r"a reward function still runs 0\.2 s after the training"):
            worker.stop()
        left = set(threading.enumerate()) - others
        assert all(thread.daemon for thread in left)  # for others Python's end waits,
        assert not left & set(_threads_queues)  # and for those of a ThreadPoolExecutor
    finally:
        answer.set()
    wait(rollouts)
    assert worker.rollout_buffer.empty()


@pytest.mark.parametrize("rewarded", [None, []])
def test_no_reward_function_is_refused_before_an_engine_is_built(
    tiny_policy: str, tmp_path: Path, rewarded: Any
) -> None:
    das.speculate()
    with pytest.raises(EngineError, match=r"^AsyncGRPOTrainer with das: reward_funcs: .* pass a function"):
        built(tiny_policy, tmp_path, rewarded)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("code", "answered", "why"),
    [
        (1, False, 'does the script lack `if __name__ == "__main__":`?'),
        (1, True, "what it printed says why"),
        (-9, True, "out of memory?"),
        (-9, False, "out of memory?"),
    ],
)
def test_what_a_dead_engine_is_said_to_have_died_of(code: int, answered: bool, why: str) -> None:
    """A script without a main guard is suspected only until the engine is built."""
    dead: Any = SimpleNamespace(_answered=answered, _process=SimpleNamespace(exitcode=code, join=lambda timeout: None))
    assert str(EngineProcess._gone(dead)) == f"the engine's process has died (exit code {code}; {why})"


def test_trainers_that_were_built_before_are_refused(tiny_policy: str, tmp_path: Path) -> None:
    with trl_trainers.built_on(torch.device("cpu")):
        earlier = built(tiny_policy, tmp_path, vllm_server_timeout=1)
    das.speculate()
    with pytest.raises(EngineError, match=r"call das\.speculate\(\) before it is built"):
        earlier.train()


def test_what_counts_is_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """use_cpu=True on a machine with a GPU."""
    from trl.experimental.async_grpo import async_grpo_trainer

    original = async_grpo_trainer.get_peak_flops_per_device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with trl_trainers.built_on(torch.device("cpu")):
        assert async_grpo_trainer.get_peak_flops_per_device(None, "float32") is None  # asks CUDA for nothing
    with trl_trainers.built_on(torch.device("cuda", 0)):
        assert async_grpo_trainer.get_peak_flops_per_device is original


def tree_row(seed: int, vocabulary: int) -> tuple[Any, list[list[int]]]:
    """TRL's row of samples that begin alike, some to their middle, and their tokens."""
    from trl.experimental.async_grpo.packing import TreeRow

    rng = random.Random(seed)
    row, samples = TreeRow(), []
    for group in range(3):
        stem = [rng.randrange(vocabulary) for _ in range(rng.randrange(2, 6))]
        for _ in range(rng.randrange(2, 5)):
            tokens = stem + [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 9))]
            samples.append(tokens)
            if rng.random() < 0.5:
                stem = tokens[: rng.randrange(len(stem), len(tokens) + 1)]
            row.add(
                {
                    "input_ids": torch.tensor(tokens),
                    "completion_mask": torch.tensor([0] + [1] * (len(tokens) - 1)),
                    "old_log_probs": torch.zeros(len(tokens)),
                    "advantage": 1.0,
                    "group_id": group,
                }
            )
    return row, samples


@pytest.mark.parametrize("seed", range(4))
def test_a_packed_row_equals_its_samples_alone(tiny_policy: str, seed: int) -> None:
    """Log-probs and their gradient, against a forward pass of each sample with transformers' own attention."""
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    row, samples = tree_row(seed, model.config.vocab_size)
    alone = torch.cat(
        [
            model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
            for ids in map(torch.tensor, samples)
        ]
    )
    factors = torch.randn(len(alone), generator=torch.Generator().manual_seed(seed))
    expected = torch.autograd.grad((alone * factors).sum(), list(model.parameters()))

    packed = row.pack()
    assert len(packed["input_ids"]) < sum(map(len, samples))
    use_tree_sdpa(model)
    tree = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    logits = model(input_ids=packed["input_ids"][None], position_ids=packed["position_ids"][None], **tree).logits[0]
    chosen = packed["shift_labels"][packed["token_index"], None]
    together = logits[packed["token_index"]].log_softmax(-1).gather(-1, chosen)[:, 0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad((together * factors).sum(), list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_windows_against_one_query_at_a_time(window: int | None) -> None:
    packed = tree_row(7, 50)[0].pack()
    num_tokens, num_heads, dimension = len(packed["input_ids"]), 4, 8
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, num_tokens, dimension, generator=generator) for heads in (num_heads, 2, 2)
    )
    tree = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    module.config = object()  # type: ignore[assignment]
    found, _ = tree_sdpa(module, query, key, value, None, **tree, scaling=0.3, sliding_window=window)
    starts, seen_starts = packed["tree_cu_seqlens_q"].tolist(), packed["tree_cu_seqlens_k"].tolist()
    for segment in range(len(starts) - 1):
        path = packed["tree_kv_index"][seen_starts[segment] : seen_starts[segment + 1]].tolist()
        for place in range(starts[segment], starts[segment + 1]):
            seen = path[: path.index(place) + 1][-(window or num_tokens) :]
            for head in range(num_heads):
                scores = query[0, head, place] @ key[0, head // 2, seen].T * 0.3
                expected = scores.softmax(-1) @ value[0, head // 2, seen]
                torch.testing.assert_close(found[0, place, head], expected)


def test_a_soft_cap_is_refused() -> None:
    nothing = torch.zeros(1)
    tree = dict.fromkeys(("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k"), nothing)
    with pytest.raises(EngineError, match="caps its attention scores"):
        tree_sdpa(None, nothing, nothing, nothing, None, **tree, softcap=1.0)
