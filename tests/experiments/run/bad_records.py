"""Bad data files, rollouts, histories and checkpoints, by the kinds of docs/exactness.md."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from composed import composed_arm
from damages import Damage, halve, linked, removed, written
from steps_on_disk import json_lines, write_steps

from das.drafter import HistoryDrafter
from das.drafter.distributions import NO_PAIR
from experiments.arm import resume
from experiments.training import checkpoint
from tests.experiments.run.bad_inputs import SHORT, WEIGHTS, Made, Opened, kind

ROW = {"problem_id": "a", "response_ids": [1, 2, 3], "run": "0"}
PROBLEM = {"problem": "What is 1 + 1?", "answer": "2"}


# ---- data files ----


def data_file(path: Path, policy: Path, content: bytes | None = None, *more: str) -> list[str]:
    """The command line that trains on a file, written with `content`."""
    if content is not None:
        path.write_bytes(content)
    return ["task=rollout", "data=problem_set", f"data.path={path}", f"policy.path={policy}", "reward=brevity",
            *SHORT, *more]  # fmt: skip


def of_rows(*rows: Any) -> bytes:
    return json_lines(rows).encode()


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
    "data that is truncated": ("x.jsonl.gz", gzip.compress(of_rows(PROBLEM) * 500)[:-20], "x.jsonl.gz cannot be"),
    "data that is not UTF-8": ("x.jsonl", '{"problem": "größer"}\n'.encode("latin-1"), "x.jsonl cannot be read"),
    "data without its columns": ("x.jsonl", of_rows({"q": "1 + 1?"}), "row 1 has no column problem, it has q"),
    "data of the wrong type": ("x.jsonl", of_rows({**PROBLEM, "answer": [2]}), "row 1: the answer is a list"),
    "data with NaN answers": ("x.jsonl", of_rows({**PROBLEM, "answer": float("nan")}), "without an answer"),
    "data in one giant line": ("x.jsonl", b'{"problem": "' + b"1 + " * 5_000_000, "x.jsonl cannot be read"),
    "data of duplicates": ("x.jsonl", of_rows(PROBLEM) * 500, "499 duplicates"),
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


def history_case(label: str, words: str, damage: Damage) -> None:
    """Add a case: a warm start from a history that is damaged so."""

    @kind(label)
    def make(tmp: Path, policy: Path) -> Made:
        path = history(tmp / "history.npz")
        damage(path)
        arguments = ["task=rollout", "reward=brevity", "arm=das", f"policy.path={policy}", *SHORT]
        return [*arguments, f"drafter.warm={path}"], words


def array(name: str, alter: Callable[[Any], Any]) -> Damage:
    """The damage of one array of a history."""

    def damage(path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = dict(file)
        np.savez(path, **{**arrays, name: alter(arrays[name])})

    return damage


history_case("history that is missing", "history.npz does not exist", Path.unlink)
history_case("history that is truncated", "not a readable .npz file", halve)
history_case("history of pickled objects", "allow_pickle=False", lambda path: np.savez(path, kind=[Opened()]))
history_case("history that contradicts itself", "do not add up", array("tokens", lambda tokens: tokens[:-1]))
history_case("history with ticks ahead of its own", "history tick is 0", array("clocks", lambda ticks: ticks + 250))
history_case("history with NaN or zero weights", "NaN or out of range", array("weights", lambda w: w * np.nan))
history_case("history of another vocabulary", "holds token 150000", lambda path: history(path, largest=150_000))


def foreign_distributions(path: Path) -> None:
    """Write a history whose tokens are the policy's, beside distributions of another vocabulary."""
    drafter = HistoryDrafter(remember="distributions")
    drafter.begin("r", "p", [1, 2])
    drafter.observe("r", [1], np.array([[150_000 << 5, *[NO_PAIR] * 3]], np.uint32))
    drafter.end("r")
    drafter.save(path)


history_case("history of another vocabulary", "holds token 150000", foreign_distributions)


# ---- recorded rollouts ----

NEGATIVE, TOO_LARGE = (of_rows({**ROW, "response_ids": [token]}) for token in (-1, 2**31))
ROLLOUTS = {
    "rollouts that are empty": [("x.jsonl", b"")],
    "rollouts that are truncated": [("x.jsonl.gz", gzip.compress(of_rows(ROW) * 500)[:-20])],
    "rollouts that are not UTF-8": [("x.jsonl.gz", gzip.compress('{"problem_id": "ö"}\n'.encode("latin-1")))],
    "rollouts that are not rows": [("x.jsonl", b"[1, 2]\n"), ("x.jsonl", b"[" * 100_000), ("x.jsonl", b"1" * 5000)],
    "rollouts of ids and text mixed": [("x.jsonl", of_rows(ROW, {"problem_id": "a", "response": "x", "run": "1"}))],
    "rollouts without what is needed": [
        ("x.jsonl", of_rows(row))
        for row in ({"response_ids": [1]}, {"problem_id": "a"}, {"problem_id": None, "response_ids": [1]})
    ],
    "token ids that are none": [
        ("x.jsonl", of_rows({**ROW, "response_ids": ids}))
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
        return ["task=bench_drafter", f"task.traces=[{path}]"], path.name


for each, files in ROLLOUTS.items():
    for one in files:
        rollouts(each, *one)


# ---- checkpoints ----


def stopped_run(tmp: Path, policy: Path) -> tuple[list[str], Path]:
    """A run that stopped after a checkpoint of step 2, to be damaged, and the command line that resumes it."""
    run = tmp / "run"
    overrides = ["task=train", f"policy.path={policy}", "engine.max_model_len=160", "trainer.max_completion_length=16",
                 "trainer.max_steps=4", "checkpoint.every=2", "reward=brevity", "wandb=off"]  # fmt: skip
    resume.remember(run, overrides)
    (run / "meta.json").write_text('{"versions": {}}')
    write_steps(run, 2)
    scratch = run / "scratch"
    scratch.mkdir()
    (scratch / WEIGHTS).write_bytes(b"weights")
    identity = {**resume.identity(composed_arm("das", *overrides)), "policy": "digest", "data": "digest"}
    checkpoint.seal(scratch, run / resume.CHECKPOINTS, 2, identity)
    return [f"resume={run}"], checkpoint.step_folder(run / resume.CHECKPOINTS, 2)


def checkpoint_case(label: str, words: str, *damages: Damage, settings: tuple[str, ...] = ()) -> None:
    """Add a case: a run is resumed whose checkpoint is damaged so. A damage gets the checkpoint's folder."""

    @kind(label)
    def make(tmp: Path, policy: Path) -> Made:
        arguments, place = stopped_run(tmp, policy)
        for damage in damages:
            damage(place)
        return [*arguments, *settings], words


def rewritten(change: Callable[[dict[str, Any]], None]) -> Damage:
    """The damage of a manifest that is changed and sealed again."""

    def damage(place: Path) -> None:
        manifest = json.loads((place / checkpoint.MANIFEST).read_text())["manifest"]
        change(manifest)
        text = json.dumps({"sha256": checkpoint._digest(manifest), "manifest": manifest})
        (place / checkpoint.MANIFEST).write_text(text)

    return damage


def of_two_processes(manifest: dict[str, Any]) -> None:
    manifest["about"]["config"]["engine.processes"] = 2


def escaping(manifest: dict[str, Any]) -> None:
    manifest["files"]["../outside"] = manifest["files"][WEIGHTS]


ELSEWHERE, RESUMED = "checkpoint that is linked to elsewhere", "metrics.jsonl damaged in the middle, resumed"
OUTSIDE = (written("../outside", b"weights"), rewritten(escaping))
METRICS = "../../metrics.jsonl"  # from the checkpoint's folder
LEARNING_RATE = ("trainer.learning_rate=0.5",)
checkpoint_case("checkpoint of another policy", "belong to another run; these differ: the policy's first weights")
checkpoint_case("checkpoint of another config", "learning_rate (5e-05 there, 0.5 here)", settings=LEARNING_RATE)
checkpoint_case("checkpoint of another number of processes", "engine.processes=2, not 1", rewritten(of_two_processes))
checkpoint_case("checkpoint with an altered byte", "no checkpoint can be used", written(WEIGHTS, b"weightz"))
checkpoint_case("checkpoint without its manifest", "manifest.json is missing or damaged", removed(checkpoint.MANIFEST))
checkpoint_case("checkpoint whose manifest names a path outside", "../outside is missing", *OUTSIDE)
checkpoint_case(ELSEWHERE, "model.safetensors is a link", lambda place: linked(place / WEIGHTS))
checkpoint_case(ELSEWHERE, "step_00002 is a link", linked)
checkpoint_case(RESUMED, "metrics.jsonl line 1 is not JSON", written(METRICS, b'{"step": 1\n{"step": 2}\n'))
checkpoint_case(RESUMED, "has no row of step 1", written(METRICS, b'{"step": 2}\n'))
