"""Small made-up recordings for tasks that read recorded rollouts. No test package is needed."""

import gzip
from pathlib import Path

import numpy as np
from steps_on_disk import json_lines, write_arm

from experiments.simulate.workload import made_up_problems

# The recorded traces that the replays of DAS read. The last but one has four prompts of each problem.
TRACES = ("areal_deepscaler_base", "areal_nemotron_base", "steer_r1d_qwen14b_pos0to3", "rg_llama3b_rl")


def write_traces(folder: Path) -> Path:
    """Write every trace with a few problems of 32 responses x 120 tokens; returns the folder."""
    folder.mkdir(parents=True)
    for seed, name in enumerate(TRACES):
        rows = (
            {"problem_id": problem, "run": "one", "response_ids": text.tolist()}
            for problem, texts in made_up_problems(8 if name.startswith("steer") else 2, 32, 120, seed)
            for text in texts
        )
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(json_lines(rows).encode()))
    return folder


def write_run(folder: Path, steps: int) -> None:
    """Write the rollouts of a run: 2 problems x 8 responses per step, of 20 to 119 tokens."""
    made = made_up_problems(2, 8 * steps, 120, seed=3)
    random = np.random.default_rng(0)
    responses = [
        [
            {"problem_id": problem, "response_ids": text[: int(random.integers(20, 120))].tolist()}
            for problem, texts in made
            for text in texts[step * 8 : (step + 1) * 8]
        ]
        for step in range(steps)
    ]
    write_arm(folder, (), responses)
