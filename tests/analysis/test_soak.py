"""Growth is found where there is some and only there; a process is sampled together with all its children."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from steps_on_disk import json_lines

from analysis import soak
from experiments.tasks.soak import sample, shared_inodes


def test_growth_of_known_series() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(3000.0)
    minutes = steps / 50  # an hour
    noise = rng.normal(0, 30, len(steps)) + 500 * (
        rng.random(len(steps)) < 0.1
    )  # MiB, with spikes in a tenth of the steps
    flat = soak.growth(minutes, steps, 3000 + noise)
    assert abs(flat["percent_per_hour"]) < 0.3
    leaking = soak.growth(minutes, steps, 3000 + noise + minutes)  # 60 MiB an hour: 2 %
    assert leaking["percent_per_hour"] == pytest.approx(2.0, abs=0.3)
    assert leaking["percent_per_1000_steps"] == pytest.approx(2.0 / 3, abs=0.1)


def test_samples_are_evaluated_after_the_warm_up(tmp_path: Path) -> None:
    rows = [
        {
            "minutes": step / 10, "step": step, "step_s": 6.0, "rollout_s": 1.0, "tokens": 100, "passes": 50,
            "history_tokens": 1000, "resident_mib": {"trainer": 2000.0 + min(step, 150) * 10, "judge": 50.0},
            "anonymous_mib": {"trainer": 1500.0, "judge": 20.0}, "cpu_s": 3.0 * step, "files": 40, "processes": 3,
        }
        for step in range(1, 201)
    ]  # fmt: skip
    (tmp_path / "soak.jsonl").write_text(json_lines(rows))
    growth = soak.evaluate(tmp_path, 15.0)["growth"]
    assert growth["resident_mib"] == {"median": 3550.0, "percent_per_hour": 0.0, "percent_per_1000_steps": 0.0}
    assert growth["step_cpu_s"]["median"] == 3.0
    assert growth["cpu_ms_per_token"]["median"] == 30.0
    assert soak.evaluate(tmp_path, 0.0)["growth"]["resident_mib.trainer"]["percent_per_hour"] > 0
    soak.soak_figure(tmp_path, 5.0, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 0
    with pytest.raises(ValueError, match="fewer than 3 steps"):
        soak.evaluate(tmp_path, 19.95)


def test_a_process_and_its_children_are_sampled() -> None:
    script = "import subprocess, sys; a = bytearray(b'x') * (64 << 20); subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        process = psutil.Process(parent.pid)
        while not process.children():
            assert parent.poll() is None
        seen: dict[psutil.Process, str] = {}
        sampled = sample(process, seen)
        (child,) = process.children()
        assert sampled["processes"] == 2
        assert sampled["resident_mib"]["trainer"] >= sampled["anonymous_mib"]["trainer"] >= 64
        assert seen[process] == "trainer"
        assert child in seen
        parent.kill()
        child.kill()


def test_a_semaphore_that_a_process_holds_is_named() -> None:
    before = shared_inodes(psutil.Process())
    lock: Any = multiprocessing.get_context("spawn").Lock()
    name = lock._semlock.name.removeprefix("/")
    assert shared_inodes(psutil.Process()) - before == {Path(f"/dev/shm/sem.{name}").stat().st_ino}
