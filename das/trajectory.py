"""Finished responses, the sliding window of them that is kept per problem, and the .npz files that hold such data."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

MAX_TOKEN = 2**31 - 1


def token_array(tokens: Any) -> np.ndarray:
    """Token ids as int32 [length]; an int32 array is not copied. Raises ValueError for anything outside 0..2**31-1."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers, got {array.dtype}")
    if array.min() < 0 or array.max() > MAX_TOKEN:
        raise ValueError(f"token ids must be in 0..{MAX_TOKEN}")
    return np.ascontiguousarray(array, np.int32)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as .npz under exactly `path`, in one rename: a reader sees the complete old or new file."""
    path = Path(path)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def load_arrays(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Read what `save_arrays` wrote. Raises ValueError for another file, or if its entry "kind" is not `kind`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a readable .npz file ({error})") from None
    if "kind" not in arrays or str(arrays["kind"]) != kind:
        raise ValueError(f"{path}: does not hold a {kind}")
    return arrays


def pack_strings(strings: list[Any]) -> np.ndarray:
    """JSON values as one uint8 array. NumPy's own string arrays would pad to the longest and drop trailing NULs."""
    return np.frombuffer(json.dumps(strings).encode(), np.uint8)


def unpack_strings(array: np.ndarray) -> list[Any]:
    """The inverse of `pack_strings`."""
    return json.loads(array.tobytes())


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One finished response.

    Tokens are copied and become read-only. Raises ValueError for what is not a list of token ids.
    """

    tokens: np.ndarray  # int32 [length]
    problem: str  # problem id
    step: int  # training step or epoch that produced it
    reward: float | None = None  # None before it is known
    finish_reason: str | None = None  # the engine's, such as "stop" or "length"; None if unknown

    def __post_init__(self) -> None:
        tokens = token_array(self.tokens).copy()
        tokens.flags.writeable = False
        object.__setattr__(self, "tokens", tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        fields = (self.problem, self.step, self.reward, self.finish_reason)
        other_fields = (other.problem, other.step, other.reward, other.finish_reason)
        return fields == other_fields and np.array_equal(self.tokens, other.tokens)

    def __hash__(self) -> int:
        return hash((self.problem, self.step, self.tokens.tobytes()))


class Window:
    """The trajectories of the last `size` history ticks (training steps or epochs), by problem, oldest first.

    A trajectory of step s is held while s > history_tick - size. The current tick therefore counts as one of the
    `size`, and a window of size 0 holds nothing. The history tick only moves forward.
    """

    def __init__(self, size: int = 16, history_tick: int = 0) -> None:
        if size < 0:
            raise ValueError(f"window must be >= 0, got {size}")
        self.size = size
        self.history_tick = history_tick
        self._by_problem: dict[str, list[Trajectory]] = {}

    def add(self, trajectory: Trajectory) -> None:
        """Keep a trajectory if its step is inside the window. Raises ValueError for a step after the current tick."""
        if trajectory.step > self.history_tick:
            raise ValueError(f"trajectory of step {trajectory.step} is ahead of the history tick {self.history_tick}")
        if trajectory.step > self.history_tick - self.size:
            self._by_problem.setdefault(trajectory.problem, []).append(trajectory)

    def advance(self, history_tick: int) -> int:
        """Move to a history tick and evict what falls out of the window; returns how many trajectories were evicted.

        Raises ValueError for a tick before the current one.
        """
        if history_tick < self.history_tick:
            raise ValueError(f"history_tick cannot go back from {self.history_tick} to {history_tick}")
        self.history_tick = history_tick
        count_before = len(self)
        for problem, trajectories in list(self._by_problem.items()):
            inside = [t for t in trajectories if t.step > history_tick - self.size]
            if inside:
                self._by_problem[problem] = inside
            else:
                del self._by_problem[problem]
        return count_before - len(self)

    def of(self, problem: str) -> list[Trajectory]:
        """The problem's trajectories in the order they were added; empty for an unknown problem."""
        return list(self._by_problem.get(problem, ()))

    @property
    def problems(self) -> list[str]:
        """The problems that have a trajectory in the window."""
        return list(self._by_problem)

    @property
    def tokens(self) -> int:
        """Number of tokens in the window."""
        return sum(len(t) for t in self)

    def __len__(self) -> int:
        return sum(len(trajectories) for trajectories in self._by_problem.values())

    def __iter__(self) -> Iterator[Trajectory]:
        for trajectories in self._by_problem.values():
            yield from trajectories

    def save(self, path: Path) -> None:
        """Write the window as .npz (no pickle), atomically."""
        trajectories = list(self)
        rewards = [t.reward for t in trajectories]
        save_arrays(
            path,
            {
                "kind": np.array("window"),
                "size_clock": np.array([self.size, self.history_tick], np.int64),
                "tokens": np.concatenate([np.empty(0, np.int32), *(t.tokens for t in trajectories)]),
                "lengths": np.array([len(t) for t in trajectories], np.int64),
                "steps": np.array([t.step for t in trajectories], np.int64),
                "has_reward": np.array([r is not None for r in rewards], bool),
                "rewards": np.array([0.0 if r is None else r for r in rewards], np.float64),
                "strings": pack_strings([[t.problem, t.finish_reason] for t in trajectories]),
            },
        )

    @classmethod
    def load(cls, path: Path) -> Window:
        """Read a saved window. Raises ValueError if the file holds something else."""
        arrays = load_arrays(path, "window")
        size, history_tick = arrays["size_clock"].tolist()
        window = cls(size, history_tick)
        ends = np.cumsum(arrays["lengths"])
        for i, (problem, finish_reason) in enumerate(unpack_strings(arrays["strings"])):
            reward = float(arrays["rewards"][i]) if arrays["has_reward"][i] else None
            tokens = arrays["tokens"][ends[i] - arrays["lengths"][i] : ends[i]]
            window.add(Trajectory(tokens, problem, int(arrays["steps"][i]), reward, finish_reason))
        return window
