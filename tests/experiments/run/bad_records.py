"""Bad data files, rollouts, histories and checkpoints, by the kinds of docs/inputs.md."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hydra import initialize_config_dir

from das.drafter import HistoryDrafter
from experiments.harness import resume
from experiments.harness.arm_configs import arm_config
from experiments.run.errors import CONFIGS
from experiments.training import checkpoint
from tests.experiments.run.bad_inputs import Made, Opened, copied, kind

ROW = {"problem_id": "a", "response_ids": [1, 2, 3], "run": "0"}
PROBLEM = {"problem": "What is 1 + 1?", "answer": "2"}


# ---- data files ----


def data_file(path: Path, policy: Path, content: bytes | None = None, *more: str) -> list[str]:
    """The command line that trains on a file, written with `content`."""
    if content is not None:
        path.write_bytes(content)
    return ["task=rollout", "data=problem_set", f"data.path={path}", f"policy.path={policy}", "reward=brevity",
            "engine.max_model_len=320", "trainer.max_completion_length=64", *more]  # fmt: skip


def json_lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@kind("data that is missing")
def no_data(tmp: Path, policy: Path) -> Made:
    return data_file(tmp / "x.jsonl", policy), "x.jsonl does not exist"


@kind("data that is a folder or a dead link")
def data_folder(tmp: Path, policy: Path) -> Made:
    (tmp / "x.jsonl").mkdir()
    return data_file(tmp / "x.jsonl", policy), "x.jsonl does not exist, or is no file"


@kind("data that is a folder or a dead link")
def dead_link(tmp: Path, policy: Path) -> Made:
    (tmp / "x.jsonl").symlink_to(tmp / "nowhere")
    return data_file(tmp / "x.jsonl", policy), "x.jsonl does not exist, or is no file"


# name, content, words of the message
DAMAGED = {
    "data that is empty": ("x.jsonl", b"", "no rows"),
    "data that is truncated": ("x.jsonl.gz", gzip.compress(json_lines(PROBLEM) * 500)[:-20], "x.jsonl.gz cannot be"),
    "data that is not UTF-8": ("x.jsonl", '{"problem": "größer"}\n'.encode("latin-1"), "x.jsonl cannot be read"),
    "data without its columns": ("x.jsonl", json_lines({"q": "1 + 1?"}), "row 1 has no column problem, it has q"),
    "data of the wrong type": ("x.jsonl", json_lines({**PROBLEM, "answer": [2]}), "row 1: the answer is a list"),
    "data with NaN answers": ("x.jsonl", json_lines({**PROBLEM, "answer": float("nan")}), "without an answer"),
    "data in one giant line": ("x.jsonl", b'{"problem": "' + b"1 + " * 5_000_000, "x.jsonl cannot be read"),
    "data of duplicates": ("x.jsonl", json_lines(PROBLEM) * 500, "499 duplicates"),
    "pickle where a table is expected": ("x.parquet", pickle.dumps(Opened()), "x.parquet cannot be read"),
}


def damaged(label: str) -> None:
    name, content, words = DAMAGED[label]

    @kind(label)
    def make(tmp: Path, policy: Path) -> Made:
        return data_file(tmp / name, policy, content, "data.problems=2"), words


for each in DAMAGED:
    damaged(each)


# ---- files of earlier runs for the drafter and the budget ----


def history(path: Path, largest: int = 9) -> Path:
    drafter = HistoryDrafter()
    drafter.begin("r", "p", [1, 2])
    drafter.observe("r", [*range(20), largest])
    drafter.end("r")
    drafter.save(path)
    return path


def warm(tmp: Path, policy: Path) -> list[str]:
    return [*copied(tmp, policy)[0], "task=rollout", "reward=brevity", "arm=das", f"drafter.warm={tmp / 'history.npz'}"]


@kind("history that is missing")
def no_history(tmp: Path, policy: Path) -> Made:
    return warm(tmp, policy), "history.npz does not exist"


@kind("history that is truncated")
def torn_history(tmp: Path, policy: Path) -> Made:
    content = history(tmp / "history.npz").read_bytes()
    (tmp / "history.npz").write_bytes(content[: len(content) // 2])
    return warm(tmp, policy), "not a readable .npz file"


@kind("history of pickled objects")
def pickled_history(tmp: Path, policy: Path) -> Made:
    np.savez(tmp / "history.npz", kind=np.array([Opened()], object))
    return warm(tmp, policy), "allow_pickle=False"


def altered_history(path: Path, name: str, alter: Callable[[Any], Any]) -> None:
    """A history with one of its arrays altered."""
    with np.load(history(path), allow_pickle=False) as file:
        arrays: dict[str, Any] = dict(file)
    np.savez(path, **{**arrays, name: alter(arrays[name])})


@kind("history that contradicts itself")
def short_history(tmp: Path, policy: Path) -> Made:
    altered_history(tmp / "history.npz", "tokens", lambda tokens: tokens[:-1])
    return warm(tmp, policy), "do not add up"


@kind("history with ticks ahead of its own")
def future_history(tmp: Path, policy: Path) -> Made:
    altered_history(tmp / "history.npz", "clocks", lambda ticks: ticks + 250)
    return warm(tmp, policy), "but its history tick is 0"


@kind("history with NaN or zero weights")
def spoilt_history(tmp: Path, policy: Path) -> Made:
    altered_history(tmp / "history.npz", "weights", lambda weights: weights * np.nan)
    return warm(tmp, policy), "its weights are NaN or out of range"


@kind("history of another vocabulary")
def other_history(tmp: Path, policy: Path) -> Made:
    history(tmp / "history.npz", largest=150_000)
    return warm(tmp, policy), "history.npz holds token 150000, the policy knows"


def latency(tmp: Path, content: str | None) -> list[str]:
    if content is not None:
        (tmp / "latency.json").write_text(content)
    return ["task=rollout", "arm=das", f"budget.latency={tmp / 'latency.json'}"]


def drafting(**coefficients: Any) -> str:
    usual = {"base": 1e-3, "row": 1e-4, "drafting": 1e-3, "token": 1e-5}
    return json.dumps({"forms": {"drafting": {"coefficients": usual | coefficients}}})


kind("latencies that are missing")(lambda tmp, policy: (latency(tmp, None), "latency.json: no latency.json of task="))
kind("latencies that are not JSON")(lambda tmp, policy: (latency(tmp, "{"), "latency.json: no latency.json of task="))
kind("latencies without their columns")(
    lambda tmp, policy: (latency(tmp, '{"forms": {"affine": {}}}'), "latency.json: no latency.json of task=calibrate")
)
kind("latencies that are negative, NaN or text")(
    lambda tmp, policy: (latency(tmp, drafting(token=-1.0)), "latency.json: base must be above 0, nothing negative")
)
kind("latencies that are negative, NaN or text")(
    lambda tmp, policy: (latency(tmp, drafting(token=float("nan"))), "latency.json: base must be above 0")
)
kind("latencies that are negative, NaN or text")(
    lambda tmp, policy: (latency(tmp, drafting(base="fast")), "latency.json: no latency.json of task=calibrate")
)


# ---- recorded rollouts ----

NEGATIVE, TOO_LARGE = (json_lines({**ROW, "response_ids": [token]}) for token in (-1, 2**31))
ROLLOUTS = {
    "rollouts that are empty": [("x.jsonl", b"")],
    "rollouts that are truncated": [("x.jsonl.gz", gzip.compress(json_lines(ROW) * 500)[:-20])],
    "rollouts that are not UTF-8": [("x.jsonl.gz", gzip.compress('{"problem_id": "ö"}\n'.encode("latin-1")))],
    "rollouts that are not rows": [("x.jsonl", b"[1, 2]\n"), ("x.jsonl", b"[" * 100_000), ("x.jsonl", b"1" * 5000)],
    "rollouts of ids and text mixed": [("x.jsonl", json_lines(ROW, {"problem_id": "a", "response": "x", "run": "1"}))],
    "rollouts without what is needed": [
        ("x.jsonl", json_lines(row))
        for row in ({"response_ids": [1]}, {"problem_id": "a"}, {"problem_id": None, "response_ids": [1]})
    ],
    "token ids that are none": [
        ("x.jsonl", json_lines({**ROW, "response_ids": ids}))
        for ids in ([-1], [2**31], [2**70], [0.5], [float("nan")], "abc", [[1], [2]], 7)
    ],
}


def rollouts(label: str, name: str, content: bytes) -> None:
    @kind(label)
    def advise(tmp: Path, policy: Path) -> Made:
        (tmp / name).write_bytes(content)
        return ["task=advise", f"task.rollouts={tmp / name}"], name

    if label == "token ids that are none" and content not in (NEGATIVE, TOO_LARGE):  # two of them are enough
        return

    @kind(label)
    def bench(tmp: Path, policy: Path) -> Made:
        path = tmp / f"{name.removesuffix('.gz')}.gz"
        path.write_bytes(content if name.endswith(".gz") else gzip.compress(content))
        return ["task=bench_drafter", "task.sizes=[]", f"task.traces=[{path}]"], path.name


for each, files in ROLLOUTS.items():
    for one in files:
        rollouts(each, *one)

kind("rollouts that are missing", (["task=advise"], "task.rollouts=PATH is missing"))
kind("rollouts that are missing", (["task=replay"], "task.run=FOLDER is missing"))
kind("rollouts that are missing", (["task=advise", "task.rollouts=no/such.jsonl"], "no/such.jsonl does not exist"))
kind("rollouts that are missing", (["task=bench_drafter", "task.traces=[no/such.gz]"], "no/such.gz does not exist"))
kind("rollouts that are missing", (["task=replay", "task.run=no/such"], "no/such holds no run"))


def recorded_run(tmp: Path) -> tuple[list[str], Path]:
    """A run of two steps that can be replayed, to be damaged, and the command line that replays it."""
    run = tmp / "run"
    (run / "rollouts").mkdir(parents=True)
    for step in (1, 2):
        with gzip.open(run / "rollouts" / f"step_{step:05d}.jsonl.gz", "wb") as file:
            file.write(json_lines({**ROW, "response_ids": list(range(20))}))
        with gzip.open(run / "rollouts" / f"step_{step:05d}.timeline.json.gz", "wb") as file:
            line = {"step_time_s": [0.1 * (n + 1) for n in range(20)], "step_live": [1] * 20, "step_tokens": [1] * 20}
            file.write(json.dumps(line).encode())
    (run / "metrics.jsonl").write_bytes(json_lines(*({"rollout_s": 2.0, "tokens": 20, "passes": 20},) * 2))
    (run / "config.yaml").write_text(
        "arm: {method: none}\nengine: {max_num_seqs: 4}\ndata: {problems: 1}\ndrafter: {unit: epoch}\n"
        "trainer: {per_device_train_batch_size: 1, num_generations: 1}\n"
    )
    return ["task=replay", f"task.run={run}"], run


@kind("recorded run with a damaged file")
def torn_timeline(tmp: Path, policy: Path) -> Made:
    arguments, run = recorded_run(tmp)
    path = run / "rollouts" / "step_00002.timeline.json.gz"
    path.write_bytes(path.read_bytes()[:-9])
    return arguments, "step_00002.timeline.json.gz cannot be read"


@kind("recorded run with a damaged file")
def backward_timeline(tmp: Path, policy: Path) -> Made:
    arguments, run = recorded_run(tmp)
    with gzip.open(run / "rollouts" / "step_00001.timeline.json.gz", "wb") as file:
        line = {"step_time_s": [0.2, 0.1, float("nan")], "step_live": [1] * 3, "step_tokens": [1] * 3}
        file.write(json.dumps(line).encode())
    return arguments, "step_00001.timeline.json.gz cannot be read: ValueError: times must rise"


@kind("recorded run with a damaged file")
def broken_run_config(tmp: Path, policy: Path) -> Made:
    arguments, run = recorded_run(tmp)
    (run / "config.yaml").write_text("arm: [")
    return arguments, "config.yaml cannot be read"


@kind("recorded run with a damaged file")
def metrics_without_times(tmp: Path, policy: Path) -> Made:
    arguments, run = recorded_run(tmp)
    (run / "metrics.jsonl").write_bytes(json_lines({"tokens": 20}, {"tokens": 20}))
    return arguments, "metrics.jsonl cannot be read: KeyError"


# ---- checkpoints ----


def stopped_run(tmp: Path, policy: Path) -> tuple[list[str], Path]:
    """A run that stopped after a checkpoint of step 2, to be damaged, and the command line that resumes it."""
    run = tmp / "run"
    overrides = ["task=train", f"policy.path={policy}", "engine.max_model_len=160", "trainer.max_completion_length=16",
                 "trainer.max_steps=4", "checkpoint.every=2", "reward=brevity", "wandb=off"]  # fmt: skip
    resume.remember(run, overrides)
    (run / "meta.json").write_text('{"versions": {}}')
    (run / "metrics.jsonl").write_bytes(json_lines({"step": 1}, {"step": 2}))
    scratch = run / "scratch"
    scratch.mkdir()
    (scratch / "model.safetensors").write_bytes(b"weights")
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = arm_config("das", overrides)
    identity = {**resume.identity(config), "policy": "digest", "data": "digest"}
    checkpoint.seal(scratch, run / resume.CHECKPOINTS, 2, identity)
    return [f"resume={run}"], checkpoint.step_folder(run / resume.CHECKPOINTS, 2)


@kind("checkpoint of another policy")
def other_policys_checkpoint(tmp: Path, policy: Path) -> Made:
    return stopped_run(tmp, policy)[0], "belong to another run; these differ: the policy's first weights"


@kind("checkpoint of another config")
def other_runs_checkpoint(tmp: Path, policy: Path) -> Made:
    return [*stopped_run(tmp, policy)[0], "trainer.learning_rate=0.5"], "trainer.learning_rate (5e-05 there, 0.5 here)"


@kind("checkpoint of another number of processes")
def other_ranks_checkpoint(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())["manifest"]
    manifest["about"]["config"]["engine.processes"] = 2
    text = json.dumps({"sha256": checkpoint._digest(manifest), "manifest": manifest})
    (place / checkpoint.MANIFEST).write_text(text)
    return arguments, "resume with engine.processes=2, not 1"


@kind("checkpoint with an altered byte")
def altered_checkpoint(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    (place / "model.safetensors").write_bytes(b"weightz")
    return arguments, "every checkpoint is damaged"


@kind("checkpoint without its manifest")
def no_manifest(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    (place / checkpoint.MANIFEST).unlink()
    return arguments, "manifest.json is missing or damaged"


@kind("checkpoint whose manifest names a path outside")
def escaping_manifest(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())["manifest"]
    (place.parent / "outside").write_bytes(b"weights")
    manifest["files"]["../outside"] = manifest["files"]["model.safetensors"]
    text = json.dumps({"sha256": checkpoint._digest(manifest), "manifest": manifest})
    (place / checkpoint.MANIFEST).write_text(text)
    return arguments, "../outside is missing"


@kind("checkpoint that is linked to elsewhere")
def linked_file(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    (place / "model.safetensors").rename(tmp / "outside")
    (place / "model.safetensors").symlink_to(tmp / "outside")
    return arguments, "model.safetensors is not a plain file"


@kind("checkpoint that is linked to elsewhere")
def linked_folder(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    place.rename(tmp / "outside")
    place.symlink_to(tmp / "outside")
    return arguments, "step_00002 is a link"


@kind("metrics.jsonl damaged in the middle, resumed")
def damaged_metrics(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    (place.parents[1] / "metrics.jsonl").write_bytes(b'{"step": 1\n{"step": 2}\n')
    return arguments, "metrics.jsonl line 1 is not JSON: the file is damaged"


@kind("metrics.jsonl damaged in the middle, resumed")
def missing_step(tmp: Path, policy: Path) -> Made:
    arguments, place = stopped_run(tmp, policy)
    (place.parents[1] / "metrics.jsonl").write_bytes(b'{"step": 2}\n')
    return arguments, "metrics.jsonl lacks steps"
