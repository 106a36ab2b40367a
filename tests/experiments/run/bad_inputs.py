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
    "policy without weights": (WEIGHTS, (removed(WEIGHTS),)),
    "policy with truncated weights": ("SafetensorError", (halved(WEIGHTS),)),
    "policy of pickled weights alone": (WEIGHTS, (removed(WEIGHTS), written("pytorch_model.bin", PICKLE))),
    "config.json that is not JSON": ("JSON", (written("config.json", b"{"),)),
    "weights of another size": ("model.embed_tokens", (altered(vocab_size=99),)),
    "architecture nobody knows, with code of its own": (
        "custom code",
        (
            written("own.py", b"import os\nos._exit(77)\n"),
            altered(model_type="own", auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"}),
        ),
    ),
}


def head_of_another_shape(tmp: Path, policy: Path) -> Made:
    vocabulary = json.loads((policy / "config.json").read_text())["vocab_size"]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 32, "vocab_size": vocabulary}
    (tmp / "config.json").write_text(json.dumps(config))
    (tmp / "model.safetensors").touch()
    return ["arms=[none,eagle3_frozen]", f"policy.path={policy}", f"head.path={tmp}", *SHORT], str(tmp)


def other_draft_model(tmp: Path, policy: Path) -> Made:
    copied(policy, tmp / "other", altered(vocab_size=7))
    arguments = ["task=rollout", "arm=draft_model", f"policy.path={policy}", f"arm.speculative.model={tmp / 'other'}"]
    return [*arguments, *SHORT], "the same vocabulary size"


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


def data_file(name: str, content: bytes | None) -> Make:
    def make(tmp: Path, policy: Path) -> Made:
        path = tmp / name
        path.mkdir() if content is None else path.write_bytes(content)
        words = ["task=rollout", "data=problem_set", f"data.path={path}", f"policy.path={policy}", "reward=brevity"]
        return [*words, *SHORT, "data.problems=2"], name

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


HISTORIES: dict[str, Damage] = {
    "history that is missing": Path.unlink,
    "history that is truncated": halve,
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


def truncated_rollouts(task: str, setting: str) -> Make:
    def make(tmp: Path, policy: Path) -> Made:
        (tmp / "x.jsonl.gz").write_bytes(gzip.compress(of_rows(ROW) * 500)[:-20])
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


def escaping(place: Path) -> None:
    """A manifest that names a path outside, sealed again."""
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())["manifest"]
    manifest["files"]["../outside"] = manifest["files"][WEIGHTS]
    sealed = {"sha256": checkpoint._digest(manifest), "manifest": manifest}
    (place / checkpoint.MANIFEST).write_text(json.dumps(sealed))


METRICS = "../../metrics.jsonl"  # from the checkpoint's folder
RESUMED = {
    "checkpoint of another policy": resumed("the policy's first weights"),
    "checkpoint of another config": resumed("learning_rate", settings=("trainer.learning_rate=0.5",)),
    "checkpoint whose manifest names a path outside": resumed(
        "../outside", written("../outside", b"weights"), escaping
    ),
    "checkpoint with a linked file": resumed(WEIGHTS, lambda place: linked(place / WEIGHTS)),
    "checkpoint that is a link": resumed("step_00002", linked),
    "rows damaged in the middle": resumed("metrics.jsonl line 1", written(METRICS, b'{"step": 1\n{"step": 2}\n')),
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


typed_cases()
for kind, (named, damages) in POLICIES.items():
    case(kind, lambda tmp, policy, n=named, of=damages: (copied(policy, tmp / "policy", *of), n))  # type: ignore[misc]
case("draft head of another policy", head_of_another_shape)
case("draft model of another vocabulary", other_draft_model)
case("config file with a syntax error", own_config(b"name: fixed\ntokens: [1, 2\n", "mine.yaml"))
case("config file that is not UTF-8", own_config("name: größe\n".encode("latin-1"), "budget=mine"))
for kind, file in UNREADABLE.items():
    case(kind, data_file(*file))
for kind, damage in HISTORIES.items():
    case(kind, warm_start(damage))
for task in ("advise task.rollouts={}", "bench_drafter task.traces=[{}]"):
    case("rollouts that are truncated", truncated_rollouts(*task.split(" ")))
for kind, make in RESUMED.items():
    case(kind, make)
case("resume= of what is no run", damaged_overrides)
case("resume= of what cannot be resumed", run_of("task=rollout", "task=rollout"))
