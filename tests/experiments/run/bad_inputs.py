"""Bad input by kinds: what is typed (bad_inputs.txt); and files, policies and runs that are damaged here."""

import gzip
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from composed import composed_arm
from damages import Damage, halve, halved, linked, removed, written
from steps_on_disk import json_lines, write_steps

from das.drafter import HistoryDrafter
from das.drafter.distributions import NO_PAIR
from experiments.arm import resume
from experiments.training import checkpoint

Made = tuple[list[str], str]  # a command line, and what the error line must name
Make = Callable[[Path, Path], Made]  # makes a case from an empty folder and a policy
CASES: dict[str, list[Make]] = {}  # kind of input -> its cases
WEIGHTS = "model.safetensors"
SHORT = ("engine.max_model_len=320", "trainer.max_completion_length=64")  # what the tests' policy can hold


class Opened:
    """A pickle that ends the process with exit code 77 when it is opened."""

    def __reduce__(self) -> Any:
        return (os._exit, (77,))


def case(kind: str, make: Make) -> None:
    CASES.setdefault(kind, []).append(make)


def of_line(line: str) -> Make:
    """A case of bad_inputs.txt."""
    typed, _, named = line.partition(" => ")
    key = re.split(r"(?<=.)=", typed.split()[-1].lstrip("+~"))[0]

    def make(tmp: Path, policy: Path) -> Made:
        (tmp / "rows").write_bytes(of_rows(*[ROW] * 4)) if "{rows}" in typed else None
        places = {"{tmp}": tmp, "{policy}": policy, "{rows}": tmp / "rows"}
        words = re.sub(r"\{(tmp|policy|rows)\}", lambda found: str(places[found[0]]), typed)
        return words.split(" "), named or key

    return make


def typed_cases() -> None:
    kind = ""
    for line in (Path(__file__).parent / "bad_inputs.txt").read_text().splitlines()[3:]:
        if line.startswith("# "):
            kind = line.removeprefix("# ")
        elif line:
            case(kind, of_line(line))


# ---- policies ----


def copied(policy: Path, folder: Path, *damages: Damage) -> list[str]:
    """The command line that uses a damaged copy of the policy, written into `folder`."""
    shutil.copytree(policy, folder)
    for damage in damages:
        damage(folder)
    return [f"policy.path={folder}", *SHORT]


def altered(**values: Any) -> Damage:
    """The damage of other values in config.json."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


PICKLE = pickle.dumps(Opened())
POLICIES: dict[str, tuple[str, tuple[Damage, ...]]] = {
    "policy without a tokenizer": ("tokenizer", (removed("tokenizer*"),)),
    "policy with a damaged tokenizer": ("policy.path", (halved("tokenizer.json"),)),
    "policy without weights": (WEIGHTS, (removed(WEIGHTS),)),
    "policy with truncated weights": ("SafetensorError", (halved(WEIGHTS),)),
    "policy of pickled weights alone": (WEIGHTS, (removed(WEIGHTS), written("pytorch_model.bin", PICKLE))),
    "pickle where safetensors is expected": ("SafetensorError", (written(WEIGHTS, PICKLE),)),
    "config.json that is not JSON": ("JSON", (written("config.json", b"{"),)),
    "weights of another architecture": (
        "model.layers.0.self_attn",
        (altered(model_type="llama", architectures=["LlamaForCausalLM"]),),
    ),
    "weights of another size": ("model.embed_tokens", (altered(vocab_size=99),)),
    "architecture nobody knows, with code of its own": (
        "custom code",
        (
            written("own.py", b"import os\nos._exit(77)\n"),
            altered(model_type="own", auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"}),
        ),
    ),
}


def looping_policy(tmp: Path, policy: Path) -> Made:
    (tmp / "a").symlink_to(tmp / "b")
    (tmp / "b").symlink_to(tmp / "a")
    return [f"policy.path={tmp / 'a'}"], "policy.path"


def head_of_another_shape(tmp: Path, policy: Path) -> Made:
    vocabulary = json.loads((policy / "config.json").read_text())["vocab_size"]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 32, "vocab_size": vocabulary}
    (tmp / "config.json").write_text(json.dumps(config))
    (tmp / "model.safetensors").touch()
    return ["arms=[none,eagle3_frozen]", f"policy.path={policy}", f"head.path={tmp}", *SHORT], str(tmp)


def other_draft_model(tmp: Path, policy: Path) -> Made:
    copied(policy, tmp / "other", altered(vocab_size=7))
    arguments = ["task=rollout", "arm=draft_model", f"policy.path={policy}", f"arm.speculative.model={tmp / 'other'}"]
    return [*arguments, *SHORT], str(tmp / "other")


# ---- config files ----


def own_config(content: bytes, named: str) -> Make:
    """A config file of the user's, budget/mine.yaml."""

    def make(tmp: Path, policy: Path) -> Made:
        (tmp / "mine" / "budget").mkdir(parents=True)
        (tmp / "mine" / "budget" / "mine.yaml").write_bytes(content)
        return [f"hydra.searchpath=[file://{tmp / 'mine'}]", "budget=mine"], named

    return make


# ---- data, and files of earlier runs ----

ROW = {"problem_id": "a", "response_ids": [1, 2, 3], "run": "0"}
PROBLEM = {"problem": "What is 1 + 1?", "answer": "2"}


def of_rows(*rows: Any) -> bytes:
    return json_lines(rows).encode()


UNREADABLE = {  # kind -> file, content
    "data that is empty": ("x.jsonl", b""),
    "data that is truncated": ("x.jsonl.gz", gzip.compress(of_rows(PROBLEM) * 500)[:-20]),
    "data that is not UTF-8": ("x.jsonl", '{"problem": "größer"}\n'.encode("latin-1")),
    "data in one giant line": ("x.jsonl", b'{"problem": "' + b"1 + " * 5_000_000),
    "data of an unknown form": ("x.csv", b"a\n1\n"),
    "data that is a folder": ("x.jsonl", None),
    "pickle where a table is expected": ("x.parquet", PICKLE),
}
UNUSABLE = {  # kind -> rows
    "data without its columns": [{"q": "1 + 1?"}],
    "data of the wrong type": [{**PROBLEM, "answer": [2]}],
    "data with NaN answers": [{**PROBLEM, "answer": float("nan")}],
    "data of duplicates": [PROBLEM] * 500,
}


def data_file(name: str, content: bytes | None, named: str = "") -> Make:
    def make(tmp: Path, policy: Path) -> Made:
        path = tmp / name
        path.mkdir() if content is None else path.write_bytes(content)
        words = ["task=rollout", "data=problem_set", f"data.path={path}", f"policy.path={policy}", "reward=brevity"]
        return [*words, *SHORT, "data.problems=2"], named or name

    return make


def history(path: Path, largest: int = 9, other: int | None = None) -> None:
    """Write a history. other: a token of remembered distributions."""
    drafter = HistoryDrafter(remember="tokens" if other is None else "distributions")
    drafter.begin("r", "p", [1, 2])
    for token in (*range(20), largest):
        pairs = None if other is None else np.array([[other << 5, *[NO_PAIR] * 3]], np.uint32)
        drafter.observe("r", [token], pairs) if pairs is not None else drafter.observe("r", [token])
    drafter.end("r")
    drafter.save(path)


def array(name: str, alter: Callable[[Any], Any]) -> Damage:
    """The damage of one array of a history."""

    def damage(path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = dict(file)
        np.savez(path, **{**arrays, name: alter(arrays[name])})

    return damage


HISTORIES: dict[str, Damage] = {
    "history that is missing": Path.unlink,
    "history that is truncated": halve,
    "history of pickled objects": lambda path: np.savez(path, kind=[Opened()]),
    "history that contradicts itself": array("tokens", lambda tokens: tokens[:-1]),
    "history with ticks ahead of its own": array("clocks", lambda ticks: ticks + 250),
    "history with NaN weights": array("weights", lambda weights: weights * np.nan),
    "history of another vocabulary": lambda path: history(path, largest=150_000),
    "distributions of another vocabulary": lambda path: history(path, other=150_000),
}


def warm_start(damage: Damage) -> Make:
    def make(tmp: Path, policy: Path) -> Made:
        path = tmp / "history.npz"
        history(path)
        damage(path)
        arguments = ["task=rollout", "reward=brevity", "arm=das", f"policy.path={policy}", *SHORT]
        return [*arguments, f"drafter.warm={path}"], "history.npz"

    return make


ROLLOUTS = {
    "rollouts that are empty": b"",
    "rollouts that are not UTF-8": '{"problem_id": "ö"}\n'.encode("latin-1"),
    "rollouts that are not rows": b"[1, 2]\n",
    "rollouts that nest without end": b"[" * 100_000,
    "rollouts of ids and text mixed": of_rows(ROW, {"problem_id": "a", "response": "x", "run": "1"}),
    "rollouts without what is needed": of_rows({"problem_id": None, "response_ids": [1]}),
    "token ids below 0": of_rows({**ROW, "response_ids": [-1]}),
    "token ids that are too large": of_rows({**ROW, "response_ids": [2**31]}),
    "token ids that are no whole numbers": of_rows({**ROW, "response_ids": [float("nan")]}),
}


def rollouts(content: bytes, task: str, setting: str) -> Make:
    def make(tmp: Path, policy: Path) -> Made:
        (tmp / "x.jsonl.gz").write_bytes(content)
        return [f"task={task}", setting.format(tmp / "x.jsonl.gz")], "x.jsonl.gz"

    return make


# ---- run folders and checkpoints ----


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


def resumed(named: str, *damages: Damage, settings: tuple[str, ...] = ()) -> Make:
    """A run is resumed whose checkpoint is damaged so. A damage gets the checkpoint's folder."""

    def make(tmp: Path, policy: Path) -> Made:
        arguments, place = stopped_run(tmp, policy)
        for damage in damages:
            damage(place)
        return [*arguments, *settings], named

    return make


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


METRICS = "../../metrics.jsonl"  # from the checkpoint's folder
RESUMED = {
    "checkpoint of another policy": resumed("the policy's first weights"),
    "checkpoint of another config": resumed("learning_rate", settings=("trainer.learning_rate=0.5",)),
    "checkpoint of another number of processes": resumed("engine.processes=2", rewritten(of_two_processes)),
    "checkpoint with an altered byte": resumed(WEIGHTS, written(WEIGHTS, b"weightz")),
    "checkpoint without its manifest": resumed("manifest.json", removed(checkpoint.MANIFEST)),
    "checkpoint whose manifest names a path outside": resumed(
        "../outside", written("../outside", b"weights"), rewritten(escaping)
    ),
    "checkpoint with a linked file": resumed(WEIGHTS, lambda place: linked(place / WEIGHTS)),
    "checkpoint that is a link": resumed("step_00002", linked),
    "rows damaged in the middle": resumed("metrics.jsonl line 1", written(METRICS, b'{"step": 1\n{"step": 2}\n')),
    "rows that lack a step": resumed("step 1", written(METRICS, b'{"step": 2}\n')),
}


def run_of(named: str, *overrides: str) -> Make:
    """A run is resumed that was started with these overrides."""

    def make(tmp: Path, policy: Path) -> Made:
        resume.remember(tmp, overrides)
        return [f"resume={tmp}"], named

    return make


def damaged_overrides(tmp: Path, policy: Path) -> Made:
    (tmp / "overrides.json").write_text("7")
    return [f"resume={tmp}"], "overrides.json"


def linked_rows(tmp: Path, policy: Path) -> Made:
    resume.remember(tmp / "run", ["task=train"])
    (tmp / "run" / "metrics.jsonl").symlink_to(tmp / "precious.txt")
    return [f"resume={tmp / 'run'}"], "metrics.jsonl"


typed_cases()
for kind, (named, damages) in POLICIES.items():
    case(kind, lambda tmp, policy, n=named, of=damages: (copied(policy, tmp / "policy", *of), n))  # type: ignore[misc]
case("policy that is a symlink loop", looping_policy)
case("draft head of another policy", head_of_another_shape)
case("draft model of another vocabulary", other_draft_model)
case("config file with a syntax error", own_config(b"name: fixed\ntokens: [1, 2\n", "mine.yaml"))
case("config file that is not UTF-8", own_config("name: größe\n".encode("latin-1"), "budget=mine"))
for kind, file in UNREADABLE.items():
    case(kind, data_file(*file))
for kind, rows in UNUSABLE.items():
    case(kind, data_file("x.jsonl", of_rows(*rows), named="problem_set"))
for kind, damage in HISTORIES.items():
    case(kind, warm_start(damage))
for kind, content in ROLLOUTS.items():
    case(kind, rollouts(gzip.compress(content), "advise", "task.rollouts={}"))
for task in ("advise task.rollouts={}", "bench_drafter task.traces=[{}]"):
    case("rollouts that are truncated", rollouts(gzip.compress(of_rows(ROW) * 500)[:-20], *task.split(" ")))
for kind, make in RESUMED.items():
    case(kind, make)
case("resume= of what is no run", damaged_overrides)
case("resume= of what cannot be resumed", run_of("task=rollout", "task=rollout"))
EVIL = "reward.function=evil:f"
case("run folder of somebody else", run_of(EVIL, "task=train", "reward=own", EVIL))
case("run folder with a link", linked_rows)
