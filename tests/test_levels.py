"""The C cores give the same bits, whichever instructions of the processor they are compiled for.

Seen to fail with `-ffp-contract=fast` in place of `off` in FLAGS of das/general/native.py.
"""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from das.budget import marginal
from das.drafter import Drafts, HistoryDrafter
from das.drafter import native as drafter_core
from das.drafter.distributions import NO_PAIR, PAIRS
from das.general import native
from das.verify import noise
from tests.made_noise import native_noise

pytestmark = pytest.mark.slow
SOURCES = (drafter_core.SOURCE, *(Path(module.__file__).parent / name for module, name in (
    (noise, "keyed.c"), (marginal, "trim.c"),
)))  # fmt: skip
LOADED = (drafter_core.lib, noise._native, marginal._native)  # each loads a core once
HERE = frozenset(native.cpu_model().split())
RUNS_HERE = [level for level, needs in native.LEVELS.get(platform.machine(), ()) if needs <= HERE]
Build = Callable[[str], dict[Path, Path]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles all cores for a level of processor. Returns source -> library."""

    def build(level: str) -> dict[Path, Path]:
        folder = tmp_path_factory.mktemp(level)
        libraries = {source: folder / f"{source.stem}.so" for source in SOURCES}
        for source, library in libraries.items():
            native.compile_core(source, library, level)
        return libraries

    return build


@contextmanager
def using(libraries: dict[Path, Path]) -> Iterator[None]:
    """Inside the `with` block, the cores are these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "prebuilt", libraries.get)  # source -> None: compiled for this processor
        for load in LOADED:
            load.cache_clear()
        yield
    for load in LOADED:
        load.cache_clear()


def sampled() -> list[bytes]:
    """Noise, sampled and verified tokens, and remembered distributions."""
    rows, vocab = 64, 5003  # not a multiple of any vector's length
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3)) * 4
    logits[:, ::97] = -torch.inf
    seeds, positions = np.arange(rows, dtype=np.int64) * 104729 + 5, np.arange(rows, dtype=np.int64)
    greedy = np.arange(rows) % 9 == 0
    tokens = noise.keyed_argmax(logits, seeds, positions, greedy)
    drafted = torch.where(torch.arange(48) % 3 > 0, tokens[torch.arange(48) // 3 * 4 + torch.arange(48) % 3], 1)
    counts = np.full(16, 3, np.int64)
    verified = noise.keyed_verify(logits, counts, drafted, seeds[:16], positions[:16], greedy[:16], 4)
    return [
        native_noise(7, 11, 100_003).tobytes(),
        tokens.numpy().tobytes(),
        verified.numpy().tobytes(),
        np.asarray(noise.likeliest(logits, np.arange(rows))).tobytes(),
    ]


def drafted(remember: str) -> list[bytes]:
    """Drafts and their probabilities, while the drafter learns from a text that repeats itself."""
    rng = np.random.default_rng(1)
    drafter, found = HistoryDrafter(remember=remember), []
    drafter.vocab = 1000
    phrases = [rng.integers(0, 60, rng.integers(2, 30)).tolist() for _ in range(12)]
    for step in range(3):
        names = [f"{step}/{i}" for i in range(8)]
        for i, name in enumerate(names):
            drafter.begin(name, f"p{i // 4}", phrases[i], *([1000 * step + i] if remember == "distributions" else []))
        for _ in range(40):
            tokens = [phrases[rng.integers(12)][: rng.integers(1, 9)] for _ in names]
            total = sum(map(len, tokens))
            pairs = np.full((total, PAIRS), NO_PAIR, np.uint32)
            pairs[:, 0] = [token << 5 | 2 for row in tokens for token in row]
            pairs[:, 1] = rng.integers(60, 90, total).astype(np.uint32) << 5 | 8
            drafter.observe_batch(names, tokens, *([pairs] if remember == "distributions" else []))
            drafts = drafter.propose_batch(names, [12] * len(names))
            used = np.arange(drafts.tokens.shape[1]) < drafts.counts[:, None]  # other entries are undefined
            found += [drafts.tokens[used].tobytes(), drafts.probs[used].tobytes()]
        for name in names:
            drafter.end(name)
        drafter.move_window(step + 1)
    return found


def chosen() -> list[bytes]:
    """The drafted tokens that a budget lets pass."""
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 16, 16)
    drafts = Drafts(np.zeros((16, 16), np.int32), rng.uniform(0.1, 1.0, (16, 16)), counts)
    number, kept, gains, lowest = marginal.best_tokens(drafts, np.linspace(1e-3, 4e-3, int(counts.sum()) + 1))
    return [kept.tobytes(), gains.tobytes(), np.array([number, lowest]).tobytes()]


@pytest.mark.parametrize(
    "level", [*(pytest.param(level, marks=pytest.mark.nightly) for level in RUNS_HERE[:-1]), *RUNS_HERE[-1:]]
)
def test_each_level_has_the_bits_of_this_processor(level: str, built: Build) -> None:
    with using({}):
        native_bits = sampled(), drafted("tokens"), drafted("distributions"), chosen()
    with using(built(level)):
        bits = sampled(), drafted("tokens"), drafted("distributions"), chosen()
    assert len({tuple(part) for part in native_bits}) == len(native_bits)
    assert bits == native_bits


def digest() -> str:
    """Drafts and samples in short form."""
    parts = [*sampled(), *drafted("tokens"), *drafted("distributions")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def test_the_c_library_adds_no_bits_of_its_own() -> None:
    """glibc, too, chooses its logarithm by the processor. Without AVX2 and FMA it takes another one."""
    older = {**os.environ, "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}
    printed = subprocess.run([sys.executable, __file__], env=older, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == digest()


if __name__ == "__main__":
    print(digest())
