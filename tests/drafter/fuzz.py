"""Attacks on the history drafter, without and with sanitizers in its C core.

python tests/drafter/fuzz.py operations 600                  all methods in random order, for 600 s
python tests/drafter/fuzz.py files 100000                    load of 100,000 damaged history files
python tests/drafter/fuzz.py operations 600 address          the same with AddressSanitizer and UBSan
python tests/drafter/fuzz.py operations 600 thread           the same with ThreadSanitizer

The exit code is 0 if nothing was found. The sanitizers come with gcc. Without them the last line says so, exit code 77.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import das.general.native  # noqa: E402
from das.drafter import HistoryDrafter, native  # noqa: E402
from das.drafter.thread import Arriving  # noqa: E402
from das.general.arrays import pack_strings  # noqa: E402

LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
FLAGS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}
NO_SANITIZER = 77  # exit code
# Python and NumPy keep memory until the process ends, so leaks are not looked for.
SETTINGS = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
# How often each method is called: while requests begin, and while they end so that a file can be loaded.
FLOOD, EBB = (4, 6, 8, 4, 0.05, 0, 0.05, 8), (0, 0, 1, 8, 0.2, 0.5, 0.2, 1)
REFUSALS = ("is not live", "has already begun", "ended while a draft", "requests are live", "cannot go back")


# ---- operations ----


class Chaos:
    """Random operations on some requests. Each problem has tokens of its own, so a draft of another text is seen."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.drafter = HistoryDrafter(**options)  # type: ignore[arg-type]
        self.folder = folder
        self.drafter.save(folder / "history.npz")
        self.num_begun = 0  # since the last `load`, which needs that no request is live: many of them bring an ebb
        self.done = {name: 0 for name in ("begin", "observe", "propose", "end", "save", "load", "move_window", "ahead")}
        self.problem_of = {f"r{i}": i % 5 for i in range(12)}

    def tokens(self, rng: random.Random, name: str) -> list[int]:
        return [100 * self.problem_of[name] + rng.randrange(4) for _ in range(rng.choice((0, 0, 1, 5, 40)))]

    def step(self, rng: random.Random) -> str:
        """One random operation; returns its name. Raises ValueError where it is not allowed now."""
        drafter, name = self.drafter, rng.choice(list(self.problem_of))
        action = rng.choices(list(self.done), EBB if self.num_begun > 100 else FLOOD)[0]
        path = self.folder / "history.npz"
        if action == "begin":
            drafter.begin(name, f"problem {self.problem_of[name]}", self.tokens(rng, name))
        elif action == "observe":
            drafter.observe(name, self.tokens(rng, name))
        elif action == "propose":
            self.propose(rng)
        elif action == "end":
            drafter.end(name, rng.random() < 0.5)
        elif action == "save":
            drafter.save(path)
        elif action == "load":
            drafter.load(path)
        elif action == "move_window":
            drafter.move_window(drafter.history_tick + 1)
        elif action == "ahead":
            self.ahead(rng)
        return action

    def ahead(self, rng: random.Random) -> None:
        """The thread drafts, its tokens come a little later, and meanwhile there are other calls."""
        names = rng.sample(list(self.problem_of), rng.randint(1, 3))
        new = [self.tokens(rng, name)[:5] for name in names]
        tokens, arrived = np.zeros((len(names), 7), np.int64), np.zeros(1, np.int64)
        for row, own in zip(tokens, new, strict=True):
            row[: 2 + len(own)] = [len(own), 0, *own]
        requests = [(name, row, 99, rng.randrange(9), ()) for row, name in enumerate(names)]
        self.drafter.draft_ahead(requests, 8, Arriving(tokens, None, 1, arrived.ctypes.data))
        threading.Timer(rng.random() * 1e-3, lambda: arrived.__setitem__(0, 1)).start()
        if rng.random() < 0.5:
            self.drafter.end(names.pop(), rng.random() < 0.5)
            new.pop()
        if names:
            self.drafter.observe_batch(names, new)
            if rng.random() < 0.5:
                self.drafter.propose_batch(names, [8] * len(names))

    def propose(self, rng: random.Random) -> None:
        names = rng.sample(list(self.problem_of), rng.randint(1, 3))
        limits = [rng.randrange(40) for _ in names]
        floors = [0.0] * len(names) if rng.random() < 0.5 else None
        for name, draft in zip(names, self.drafter.propose(names, limits, floors), strict=True):
            strange = [token for token in draft.tokens if token // 100 != self.problem_of[name]]
            assert not strange, f"tokens of another problem: {strange}"
            assert all(0.0 < p < 1.0 + 1e-9 for p in draft.probs), "a probability outside 0..1"

    def run(self, stop: float) -> None:
        """Random operations until the clock shows `stop`, and at least one of each kind."""
        rng = random.Random(0)
        while time.monotonic() < stop or not all(self.done.values()):
            try:
                action = self.step(rng)
            except ValueError as error:
                if not any(refusal in str(error) for refusal in REFUSALS):
                    raise
            else:
                self.done[action] += 1
                self.num_begun = 0 if action == "load" else self.num_begun + (action == "begin")


def run_operations(seconds: float) -> None:
    """Random operations on one drafter."""
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), cross_problem_tokens=0, window=3, min_prob=0.001)
        chaos.run(time.monotonic() + seconds)
        print(chaos.done, flush=True)


# ---- files ----


def damage(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One to three random changes to the arrays of a history."""
    arrays = dict(arrays)
    names = [name for name in arrays if name != "kind"]
    for _ in range(rng.integers(1, 4)):
        name = str(rng.choice(names))
        array = arrays[name].copy()
        kind = int(rng.integers(8))
        if kind == 0:
            arrays[name] = array.reshape(-1)[: rng.integers(array.size + 1)]
        elif kind == 1:
            other = str(rng.choice(names))
            arrays[name], arrays[other] = arrays[other], arrays[name]
        elif kind == 2 and array.size:  # bits
            raw = bytearray(array.tobytes())
            for _ in range(rng.integers(1, 4)):
                raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
            arrays[name] = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
        elif kind == 3 and array.size:  # a huge or odd number
            at = int(rng.integers(array.size))
            values: tuple[float, ...] = (0, -1, 2**31 - 1, -(2**62), 2**63 - 1, 1e308, -1e308, np.nan, np.inf, 1e-320)
            value = values[rng.integers(len(values))]
            with np.errstate(all="ignore"):
                array.reshape(-1)[at] = np.array(value).astype(array.dtype)
            arrays[name] = array
        elif kind == 4 and array.dtype.kind in "iuf":
            arrays[name] = array.astype(rng.choice(["<i8", ">i8", "<f8", ">f4", "<u2", "|b1", "<c16", "<U5"]))
        elif kind == 5:
            arrays[name] = array.view(array.dtype.newbyteorder("S"))
        elif kind == 6 and array.size:
            arrays[name] = np.concatenate([array.reshape(-1)] * 2)
        else:
            texts: list[object] = [["p"], "p", [1], [None], {"p": 1}, 7, ["p"] * 6, [["p"]] * 6, ["\ud800"] * 6]
            arrays["problems"] = pack_strings(texts[rng.integers(len(texts))])  # type: ignore[arg-type]
    return arrays


def saved(path: Path) -> dict[str, np.ndarray]:
    """A saved history of two problems and three ticks, as arrays."""
    rng = np.random.default_rng(0)
    drafter = HistoryDrafter()
    for tick in (1, 2, 5):
        drafter.move_window(tick)
        for problem in ("p", "q"):
            drafter.begin("r", problem, [1, 2, 3])
            drafter.observe("r", rng.integers(0, 9, 50))
            drafter.end("r")
    drafter.save(path)
    with np.load(path) as file:
        return dict(file)


def use(drafter: HistoryDrafter, folder: Path) -> None:
    """Draft from a history that was loaded, learn, move the window, save, load again."""
    drafter.begin("r", "p", [1, 2, 3, 0])
    for i in range(20):
        (draft,) = drafter.propose(["r"], [16])
        assert all(0.0 <= p <= 1.0 for p in draft.probs), "a probability outside 0..1"
        drafter.observe("r", draft.tokens[:5] if i % 3 else [i % 4, 2, 1])
    drafter.end("r")
    drafter.move_window(drafter.history_tick + 1)
    assert np.isfinite(drafter.weights()).all(), "weights that are not finite"
    drafter.save(folder / "again.npz")
    HistoryDrafter(warm=folder / "again.npz")


def run_files(count: int, seed: int = 0) -> None:
    """Load damaged files: each is refused with ValueError, or can be used."""
    rng = np.random.default_rng(seed)
    num_refused = 0
    shared = HistoryDrafter(window=10**6)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.npz"
        arrays = saved(path)
        whole = path.read_bytes()
        for i in range(count):
            if i % 4:
                with path.open("wb") as file:
                    np.savez(file, **damage(rng, arrays))  # type: ignore[arg-type]
            else:  # the file itself
                raw = bytearray(whole[: rng.integers(len(whole))] if i % 8 else whole)
                for _ in range(rng.integers(1, 9)):
                    if raw:
                        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
                path.write_bytes(raw)
            drafter = shared if i % 2 else HistoryDrafter()
            try:
                drafter.load(path)
            except ValueError as error:
                if "\n" in str(error) or path.name not in str(error):
                    raise AssertionError("not one line with the file's name") from error
                num_refused += 1
            else:
                use(drafter, Path(folder))
            if (i + 1) % 10000 == 0:
                print(f"{i + 1} files, {num_refused} refused", flush=True)
    print(f"{count} files: {num_refused} refused, the others could be used", flush=True)


# ---- sanitizers ----


def sanitizer_library(sanitizer: str) -> str | None:
    """gcc's run-time library of a sanitizer; None where it is missing."""
    name = LIBRARIES[sanitizer]
    try:
        found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    path = Path(found.strip())
    return str(path.resolve()) if path.is_absolute() and path.exists() else None  # gcc prints the bare name if missing


def main(mode: str, amount: str, sanitizer: str = "") -> int:
    library = sanitizer_library(sanitizer) if sanitizer else None
    if sanitizer and library is None:
        print(f"gcc has no {LIBRARIES[sanitizer]} here: nothing was run with the {sanitizer} sanitizer")
        return NO_SANITIZER
    if library is not None and os.environ.get("LD_PRELOAD") != library:
        # The sanitizer must be loaded before Python, and alone: vLLM, for example, sets LD_PRELOAD in its process and
        # those that it starts.
        environment = {**os.environ, **SETTINGS, "LD_PRELOAD": library}
        return subprocess.run([sys.executable, __file__, mode, amount, sanitizer], env=environment).returncode
    if sanitizer:
        das.general.native.FLAGS = (*das.general.native.FLAGS, *FLAGS[sanitizer], "-g")
    native.lib()  # the build does not count
    start = time.monotonic()
    {"operations": lambda: run_operations(float(amount)), "files": lambda: run_files(int(amount))}[mode]()
    print(f"{mode} {amount} {sanitizer}: nothing found in {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
