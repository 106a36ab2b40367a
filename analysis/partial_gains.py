"""Compare trainings that put groups aside with others: `python -m analysis.partial_gains outputs/multirun/DATE`.

The folder holds runs of task=train that differ in trainer.partial and seed. The command prints two tables: times and
rewards by trainer.partial; and the share of the tokens put aside that the next weights drew again.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read

Rows = list[dict[str, Any]]  # of metrics.jsonl
LENGTHS = (16, 64, 256)  # bounds between classes of lengths, in tokens
LONG_TAIL = 8  # a step has a long tail if its longest trained response has so many times the median's tokens


def rows_by_partial(folder: Path) -> dict[int, list[Rows]]:
    """Read the rows of all runs below `folder`: trainer.partial -> the rows of each run."""
    found: dict[int, list[Rows]] = defaultdict(list)
    for path in sorted(folder.rglob("metrics.jsonl")):
        found[read.config(path.parent)["trainer"]["partial"]].append(read.metrics(path.parent))
    return dict(sorted(found.items()))


def times(runs: Mapping[int, Sequence[Rows]]) -> str:
    """Return a table with a row for each value of trainer.partial: means over steps of times, of the engine's passes,
    of the passes in steps with a long tail, and of the longest trained response over their median."""
    lines = [
        "partial  rollout s/step  step s/step  passes/step  with a long tail  longest/median  reward of the last "
        "quarter, mean ± std  each seed"
    ]
    for partial, of_seeds in runs.items():
        rows = [row for seed in of_seeds for row in seed]
        seconds = [np.mean([row[name] for row in rows]) for name in ("rollout_s", "step_s")]
        tails = [row["length_max"] / row["length_median"] for row in rows]
        passes = [row["decode_steps"] for row in rows]
        of_long = [count for count, tail in zip(passes, tails, strict=True) if tail >= LONG_TAIL]
        last = [np.mean([row["reward"] for row in seed[-max(1, len(seed) // 4) :]]) for seed in of_seeds]
        spread = np.std(last, ddof=1) if len(last) > 1 else 0.0
        lines.append(
            f"{partial:7d}  {seconds[0]:14.3f}  {seconds[1]:11.3f}  {np.mean(passes):11.1f}  "
            f"{f'{np.mean(of_long):.1f}' if of_long else 'none':>16s}  {np.mean(tails):14.2f}  "
            f"{np.mean(last):.3f} ± {spread:.3f}  {' '.join(f'{seed:.3f}' for seed in last)}"
        )
    return "\n".join(lines)


def kept(runs: Mapping[int, Sequence[Rows]]) -> str:
    """Return a table with the share of old tokens that were kept: by the steps that their response had been in, and by
    its number of old tokens."""
    verified = [
        entry for of_seeds in runs.values() for rows in of_seeds for row in rows
        for entry in row.get("partial", {}).get("verified", [])
    ]  # fmt: skip
    by_class: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for steps, old, new in sorted(verified):
        by_class[f"{steps} step{'s' if steps > 1 else ''} before"].append((old, new))
    for _, old, new in sorted(verified, key=lambda entry: entry[1]):
        bound = next((bound for bound in LENGTHS if old < bound), None)
        by_class[f"{LENGTHS[-1]} tokens or more" if bound is None else f"below {bound} tokens"].append((old, new))
    by_class["all"] = [(old, new) for _, old, new in verified]
    lines = ["responses put aside   number  old tokens    kept"]
    for name, counts in by_class.items():
        old, new = np.sum(counts, axis=0) if counts else (0, 0)
        lines.append(f"{name:20s} {len(counts):7d} {old:11d}  {new / max(1, old):6.1%}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the tables of one folder."""
    if len(arguments) != 1:
        raise SystemExit("error: give one folder: python -m analysis.partial_gains outputs/multirun/DATE")
    runs = rows_by_partial(Path(arguments[0]))
    if not runs:
        raise SystemExit(
            f"error: {arguments[0]} holds no run (metrics.jsonl): make some with python run.py -m task=train "
            "trainer.partial=0,2 engine.max_num_seqs=32"
        )
    print(f"{times(runs)}\n\n{kept(runs)}")


if __name__ == "__main__":
    main(sys.argv[1:])
