"""Long checks of the history drafter, run by hand.

python tests/drafter/soak.py operations 1000000    random operations against the reference, every answer compared (half
                                                   an hour; a third argument is the first seed)
python tests/drafter/soak.py minutes 10            rollouts without end: memory must stay where it is
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from das.drafter import HistoryDrafter
from das.drafter.options import SCOPES
from tests.drafter.test_history import drive


def operations(count: int, first: int = 0) -> None:
    """Compare with the reference over `count` operations, in episodes of other options; seeds from `first` on."""
    done = drafted = 0
    seed = first
    start = time.monotonic()
    while done < count:
        rng = np.random.default_rng(seed)
        steps, longest = ((60, 8), (60, 60))[seed % 20 == 0]
        drafted += drive(
            seed,
            steps,
            longest,
            scope=SCOPES[rng.integers(len(SCOPES))],
            window=int(rng.choice([0, 1, 2, 16])),
            min_prob=float(rng.choice([0.0, 0.01, 0.1, 0.5])),
            max_candidates=int(rng.choice([1, 3, 32, 64])),
            cross_problem_tokens=int(rng.choice([0, 20, 65536])),
        )
        done += steps
        seed += 1
        if seed % 1000 == 0:
            print(f"{done} operations, {drafted} tokens drafted, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{done} operations in {seed - first} episodes, {drafted} tokens drafted: no difference", flush=True)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def minutes(count: float) -> None:
    """Epochs of 8 problems x 8 siblings x 500 tokens with a window of 4; prints memory twenty times."""
    rng = np.random.default_rng(0)
    drafter = HistoryDrafter(window=4, min_prob=0.005)
    start = time.monotonic()
    clock, tokens, said = 0, 0, -1
    while time.monotonic() - start < count * 60:
        names = [f"{p}/{i}" for p in range(8) for i in range(8)]
        for name in names:
            drafter.begin(name, f"{name[0]}-{clock // 40}", [1, 2, 3, int(name[0])])  # problems come and go
        for _ in range(100):
            drafts = drafter.propose(names, [16] * 64)
            drafter.observe_batch(
                names, [d.tokens[:4] if rng.random() < 0.8 else rng.integers(0, 3000, 6).tolist() for d in drafts]
            )
        for name in names:
            drafter.end(name, keep=bool(rng.random() < 0.95))
        tokens += 64 * 300
        clock += 1
        drafter.end_step(clock)
        now = int((time.monotonic() - start) / (count * 60) * 20)
        if now > said:
            said = now
            print(
                f"{time.monotonic() - start:6.0f} s  clock {clock}  history {drafter.history_tokens}  "
                f"index {drafter.index_bytes / 2**20:.1f} MiB  resident {resident_mib():.1f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    {"operations": lambda: operations(*map(int, numbers)), "minutes": lambda: minutes(float(numbers[0]))}[what]()
