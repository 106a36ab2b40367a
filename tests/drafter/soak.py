"""Long checks of the history drafter, to be run by hand.

python tests/drafter/soak.py operations 1000000    random operations on drafter and reference, every answer compared
                                                   (half an hour; a third argument is the first seed)
python tests/drafter/soak.py minutes 10            rollouts without end; memory must not grow
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from das.drafter import HistoryDrafter
from das.drafter.options import SCOPES
from tests.drafter.test_reference import drive


def operations(count: int, first_seed: int = 0) -> None:
    """Compare with the reference over `count` operations. Each seed is an episode with options of its own."""
    num_done = num_drafted = 0
    seed = first_seed
    start = time.monotonic()
    while num_done < count:
        rng = np.random.default_rng(seed)
        steps, max_new_tokens = ((60, 8), (60, 60))[seed % 20 == 0]
        num_drafted += drive(
            seed,
            steps,
            max_new_tokens,
            scope=SCOPES[rng.integers(len(SCOPES))],
            window=int(rng.choice([0, 1, 2, 16])),
            min_prob=float(rng.choice([0.0, 0.01, 0.1, 0.5])),
            max_candidates=int(rng.choice([1, 3, 32, 64])),
            cross_problem_tokens=int(rng.choice([0, 20, 65536])),
        )
        num_done += steps
        seed += 1
        if seed % 1000 == 0:
            seconds = time.monotonic() - start
            print(f"{num_done} operations, {num_drafted} tokens drafted, {seconds:.0f} s", flush=True)
    episodes = seed - first_seed
    print(f"{num_done} operations in {episodes} episodes, {num_drafted} tokens drafted: no difference", flush=True)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def minutes(count: float) -> None:
    """Roll out epochs of 8 problems x 8 siblings x 500 tokens with a window of 4; print memory twenty times."""
    rng = np.random.default_rng(0)
    drafter = HistoryDrafter(window=4, min_prob=0.005)
    start = time.monotonic()
    tick, reports = 0, 0
    while time.monotonic() - start < count * 60:
        names = [f"{p}/{i}" for p in range(8) for i in range(8)]
        for name in names:
            drafter.begin(name, f"{name[0]}-{tick // 40}", [1, 2, 3, int(name[0])])  # problems come and go
        for _ in range(100):
            drafts = drafter.propose(names, [16] * 64)
            drafter.observe_batch(
                names, [d.tokens[:4] if rng.random() < 0.8 else rng.integers(0, 3000, 6).tolist() for d in drafts]
            )
        for name in names:
            drafter.end(name, keep=bool(rng.random() < 0.95))
        tick += 1
        drafter.end_step(tick)
        seconds = time.monotonic() - start
        if seconds / (count * 60) * 20 >= reports:
            reports += 1
            print(
                f"{seconds:6.0f} s  tick {tick}  history {drafter.history_tokens}  "
                f"index {drafter.index_bytes / 2**20:.1f} MiB  resident {resident_mib():.1f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    {"operations": lambda: operations(*map(int, numbers)), "minutes": lambda: minutes(float(numbers[0]))}[mode]()
