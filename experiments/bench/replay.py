"""task=bench_replay: how long it takes to simulate the paper's maths step with the real drafter and budget.

result.json: steps: rows of wall_s and processor_s (of the replay), tokens, longest, rollout_s, tokens_per_pass;
plain_processor_s: processor time of the same work without speculation; peak_gib: peak memory, workload included.
"""

import resource
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.replay.cluster import place, simulate_rollout
from das.replay.engine import PlainEngine
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from experiments.recorded.chains_of_thought import chains_of_thought
from experiments.recorded.latency_files import chosen_form
from experiments.recorded.rollouts import grouped
from experiments.run.checks import at_least_one
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

MAX_TOKENS = 16384  # of a response (paper)


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Make the workload, replay it step by step, write result.json."""
    task = config.task
    at_least_one(task, "engines", "max_num_seqs", "batch", "group", "steps")
    form, source = chosen_form(task.latency, str(task.gpu), str(task.model))
    recorded = chains_of_thought(Path(task.traces), int(task.problems))
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    progress.note(f"time of a pass: {source}")
    group, max_num_seqs = int(task.group), int(task.max_num_seqs)
    synthesis = Synthesis(recorded, float(task.run_length))
    works = grouped(synthesis.make(int(task.batch), task.group * task.steps, MAX_TOKENS, seed=5), group, 0)
    placed = [place(work.lengths, work.problems, int(task.engines), "round_robin") for work in works]
    times, drafter = Times(form), HistoryDrafter()
    engines = [
        TextEngine(times, max_num_seqs, drafter, make_budget(plain(config.budget)), MAX_TOKENS, name=f"{e}-")
        for e in range(task.engines)
    ]
    rows = []
    for i, work in enumerate(works):
        wall, processor = time.perf_counter(), time.process_time()
        step = simulate_rollout(work, engines, placed[i], i + 1)
        row = {
            "wall_s": time.perf_counter() - wall,
            "processor_s": time.process_time() - processor,
            "tokens": step.tokens,
            "longest": int(work.lengths.max()),
            "rollout_s": step.rollout_s,
            "tokens_per_pass": step.tokens_per_pass,
        }
        rows.append(row)
        progress.note(
            f"step {i + 1}: {len(work)} responses, {row['tokens']:,} tokens, longest {row['longest']:,}: replayed in "
            f"{row['wall_s']:.1f} s (processor {row['processor_s']:.1f} s), simulated {row['rollout_s']:.0f} s, "
            f"tokens/pass {row['tokens_per_pass']:.2f}"
        )
    processor = time.process_time()
    simulate_rollout(works[0], [PlainEngine(times, max_num_seqs) for _ in engines], placed[0], 1)
    result: dict[str, Any] = {
        "steps": rows,
        "plain_processor_s": time.process_time() - processor,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    progress.note("without speculation {plain_processor_s:.2f} s; peak memory {peak_gib:.2f} GiB".format(**result))
    progress.note(f"result: {run_folder.write_result(result)}")
