"""Read runs for a comparison, from the folder of a run or from an offline W&B run."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from analysis import evaluations, read
from analysis.identity import FINAL

WANDB_HEADER = b":W&B\xe1\xbe\x00"  # with which a file of W&B begins
WANDB_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # W&B writes these as text


class NotARun(ValueError):
    """Raised for a name that is not a readable run. The one-line message says which names are possible."""


@dataclass
class Run:
    """What one arm of a run recorded: its metrics, config and final digests."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]  # as in metrics.jsonl: one row for each step, ordered by step
    config: dict[str, Any]  # dotted key -> value
    final: dict[str, str]  # digests of weights and optimizer; empty until the run has finished


def find(named: str) -> list[Run]:
    """Return the runs that a command-line argument names. Raises NotARun if it names none.

    named: a run's folder, an arm of a comparison (FOLDER:ARM or FOLDER/arms/ARM), the folder of a comparison (for all
    its arms), or an offline W&B run.
    """
    path, arm = Path(named), ""
    if not path.exists() and ":" in named:
        folder_name, _, arm = named.rpartition(":")
        path = Path(folder_name)
    if not path.exists():
        raise NotARun(f"{path} does not exist: name a run's folder, FOLDER:ARM, or an offline-run-* folder of W&B")
    if (path / "arms").is_dir():
        arms = [folder.name for folder in (path / "arms").iterdir() if (folder / "metrics.jsonl").exists()]
        arms.sort(key=lambda name: (name != "none", name))  # put the baseline first
        if not arms:
            raise NotARun(f"{path}: none of its arms has finished a step yet: wait for the first step")
        if arm and arm not in arms:
            raise NotARun(f"{path} has no arm {arm!r}: choose from {', '.join(arms)}")
        return [from_folder(path / "arms" / name) for name in ([arm] if arm else arms)]
    if arm:
        raise NotARun(f"{path} is not a comparison and has no arms: leave out :{arm}")
    if path.suffix == ".wandb":
        path = path.parent
    if list(path.glob("run-*.wandb")):
        return [from_wandb(path)]
    if (path / "metrics.jsonl").exists():
        return [from_folder(path)]
    raise NotARun(f"{path} is not a run: it has neither metrics.jsonl nor arms/ nor a run-*.wandb file")


def from_folder(folder: Path) -> Run:
    """Read the run whose metrics.jsonl is in `folder`. Raises NotARun if a file is missing or damaged."""
    if not (folder / "config.yaml").exists():
        raise NotARun(f"{folder} has no config.yaml: it is not the folder of a run")
    try:
        rows = read.metrics(folder)
        config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        final = read.final(folder) if (folder / "final.json").exists() else {}
    except (ValueError, YAMLError) as error:
        raise NotARun(f"{folder} holds a damaged file: {' '.join(str(error).split())}") from None
    flat_config = flatten(config)
    run_folder = folder.parent.parent if folder.parent.name == "arms" else folder
    name = f"{run_folder.name}/{flat_config.get('arm.name', folder.name)}"
    return Run(name, folder, rows_by_step(rows, folder), flat_config, final)


def from_wandb(folder: Path) -> Run:
    """Read the offline W&B run in `folder`, together with the other folders of this run beside it.

    W&B writes another folder whenever a run is resumed. A run that was killed at its start leaves a file without
    records, which is left out, by name. Raises NotARun if W&B's reader cannot read a file.
    """
    (file_name,) = {path.name for path in folder.glob("run-*.wandb")}
    files = sorted({folder / file_name, *folder.parent.glob(f"*run-*/{file_name}")})
    empty = [file for file in files if is_empty(file)]
    if len(empty) == len(files):
        raise NotARun(f"{files[0]} is empty: the run was killed at its start")
    for file in empty:
        print(f"{file} is empty and left out: the run was killed at its start", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    final: dict[str, str] = {}
    label = folder.name
    for file in files:
        for record in [] if file in empty else records(file):
            if record["type"] == "run":
                update = record["run"].get("config", {}).get("update", {})
                config = {key: value for key, value in update.items() if key not in ("_wandb", "meta")}
                label = record["run"].get("display_name", label)
            elif record["type"] == "history":
                item = record["history"]["item"]
                rows.append(
                    {key: WANDB_FLOATS.get(str(value), value) for key, value in {"step": item["_step"], **item}.items()}
                )
            elif record["type"] == "summary":
                final |= {key: record["summary"]["update"][key] for key in FINAL if key in record["summary"]["update"]}
    return Run(f"{label} (W&B)", folder, rows_by_step(evaluations.from_wandb(rows), folder), flatten(config), final)


def is_empty(file: Path) -> bool:
    """Return whether an offline W&B run's file has no record."""
    with file.open("rb") as begun:
        return WANDB_HEADER.startswith(begun.read(len(WANDB_HEADER) + 1))


def records(file: Path) -> list[dict[str, Any]]:
    """Read the records of an offline W&B run's file, without an incomplete record at its end. Raises NotARun."""
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)],
        env={**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not done.stdout:
        messages = done.stderr.strip().splitlines()
        raise NotARun(f"{file} cannot be read by W&B's reader: {messages[-1] if messages else 'it is empty'}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_by_step(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return one row for each step, in order. If a resumed run repeated a step, the later row is used.

    folder: the folder that error messages name. Raises NotARun if there are no rows, or if a row has no step.
    """
    if not all(isinstance(row.get("step"), int) for row in rows):
        raise NotARun(f"{folder}: metrics.jsonl has a row without a step: the file is damaged")
    by_step = {int(row["step"]): row for row in rows}
    if not by_step:
        raise NotARun(f"{folder} has no rows: the run has not finished a step yet")
    return [by_step[step] for step in sorted(by_step)]


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested config as one dictionary with dotted keys."""
    if not isinstance(config, dict) or not config:
        return {prefix: config} if prefix else {}
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        dotted |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return dotted
