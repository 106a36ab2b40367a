"""Saved histories: the file format of `HistoryDrafter.save`, `load` and the option `warm`."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from das.drafter import native
from das.drafter.checks import MAX_TICK
from das.drafter.distributions import Distributions
from das.general.arrays import load_arrays, pack_strings, save_arrays, token_array, unpack_strings

_KIND = "drafter history"


@dataclass(frozen=True)
class SavedText:
    """The last tokens of a prompt, followed by a finished response."""

    problem: str
    history_tick: int  # the tick in which the response finished
    context: int  # number of tokens that belong to the prompt
    tokens: np.ndarray  # int32 [context + response]
    # The distributions from which the response's tokens were sampled; None: they are unknown.
    remembered: Distributions | None = field(default=None, kw_only=True)

    @property
    def nbytes(self) -> int:
        """The number of bytes of memory that tokens and distributions take."""
        return self.tokens.nbytes + (0 if self.remembered is None else self.remembered.nbytes)


@dataclass(frozen=True)
class SavedHistory:
    """The window's texts in finishing order, the current history tick and a drafter's learned weights."""

    history_tick: int
    texts: list[SavedText]
    # float64, in the order of das.drafter.native.SIZES; None in what engines and ranks send each other: texts alone
    weights: np.ndarray | None = None

    def write(self, path: Path) -> None:
        """Write the history as .npz, atomically."""
        save_arrays(path, self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the history in the form of files and messages. The keys `clock` and `clocks` hold history ticks."""
        return {
            "kind": np.array(_KIND),
            **({} if self.weights is None else {"weights": self.weights}),
            "clock": np.array(self.history_tick, np.int64),
            "tokens": np.concatenate([np.empty(0, np.int32), *(text.tokens for text in self.texts)]),
            "lengths": np.array([len(text.tokens) - text.context for text in self.texts], np.int64),
            "contexts": np.array([text.context for text in self.texts], np.int64),
            "clocks": np.array([text.history_tick for text in self.texts], np.int64),
            "problems": pack_strings([text.problem for text in self.texts]),
            **self._remembered(),
        }

    def _remembered(self) -> dict[str, np.ndarray]:
        """Returns the texts' remembered distributions as arrays for the file; an empty dict if no text has any."""
        if all(text.remembered is None for text in self.texts):
            return {}
        of_texts = [
            Distributions.unknown(len(text.tokens) - text.context) if text.remembered is None else text.remembered
            for text in self.texts
        ]
        return {
            "heads": np.concatenate([each.heads for each in of_texts]),
            "others": np.concatenate([each.others for each in of_texts]),
        }


def read_history(path: Path) -> SavedHistory:
    """Read a saved history. Raises ValueError with a one-line message if the file holds no history or is damaged."""
    arrays = load_arrays(path, _KIND)
    try:
        return history_of(arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def history_of(arrays: dict[str, np.ndarray]) -> SavedHistory:
    """Undo `SavedHistory.arrays`, in this machine's byte order. Raises ValueError with a one-line message if they hold
    no history."""
    tokens = token_array(_array(arrays, "tokens", 1, "iu"))
    clock = _array(arrays, "clock", 0, "iu").item()
    if not 0 <= clock <= MAX_TICK:
        raise ValueError(f"its history tick {clock} is not in 0..{MAX_TICK}")
    contexts, lengths, clocks = (_array(arrays, name, 1, "iu").tolist() for name in ("contexts", "lengths", "clocks"))
    problems = _problems(arrays)
    if not len(problems) == len(contexts) == len(lengths) == len(clocks):
        raise ValueError(
            f"its texts do not add up: {len(problems)} problems, {len(contexts)} contexts, {len(lengths)} lengths, "
            f"{len(clocks)} clocks"
        )
    if min([*contexts, *lengths], default=0) < 0 or sum(contexts) + sum(lengths) != len(tokens):
        raise ValueError(f"its lengths do not add up to its {len(tokens)} tokens")
    if clocks and not -MAX_TICK <= min(clocks) <= max(clocks) <= clock:
        raise ValueError(f"its texts finished at ticks {min(clocks)}..{max(clocks)}, but its history tick is {clock}")
    ends = accumulate(map(operator.add, contexts, lengths))
    of_texts = zip(problems, clocks, contexts, lengths, ends, _remembered(arrays, lengths), strict=True)
    texts = [
        SavedText(problem, tick, context, tokens[end - context - length : end], remembered=remembered)
        for problem, tick, context, length, end, remembered in of_texts
    ]
    return SavedHistory(clock, texts, _weights(arrays) if "weights" in arrays else None)


def _remembered(arrays: dict[str, np.ndarray], lengths: list[int]) -> Sequence[Distributions | None]:
    """Returns the distributions of each text's response. lengths: its number of tokens."""
    if "heads" not in arrays:
        return [None] * len(lengths)
    heads, others = _array(arrays, "heads", 1, "u"), _array(arrays, "others", 1, "u")
    if len(heads) != sum(lengths):
        raise ValueError(f"it has {len(heads)} distributions for {sum(lengths)} tokens of responses")
    return Distributions(heads.astype(np.uint8), others.astype(np.uint32)).divided(lengths)


def _array(arrays: dict[str, np.ndarray], name: str, dimensions: int, kinds: str) -> np.ndarray:
    """Returns one of the file's arrays after a check. kinds: the allowed NumPy type letters."""
    array = arrays.get(name)
    if array is None:
        raise ValueError(f"it holds no {name}")
    # A file member that is no array comes back as bytes.
    if not isinstance(array, np.ndarray) or array.ndim != dimensions or array.dtype.kind not in kinds:
        raise ValueError(f"its {name} have a wrong type or shape")
    return array


def _problems(arrays: dict[str, np.ndarray]) -> list[str]:
    packed = _array(arrays, "problems", 1, "u")
    try:
        problems = unpack_strings(packed)
    except (ValueError, RecursionError):  # RecursionError: brackets in brackets without end
        raise ValueError("its problems cannot be read") from None
    if not isinstance(problems, list) or not all(isinstance(problem, str) for problem in problems):
        raise ValueError("its problems are not strings")
    return problems


def _weights(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the learned weights of the file. Raises ValueError for values far outside the range of learned ones,
    because computing with them would give NaN."""
    with np.errstate(invalid="ignore"):  # NaN is refused below
        weights = np.ascontiguousarray(_array(arrays, "weights", 1, "f"), np.float64)
    prior = native.prior_weights()
    if weights.shape != prior.shape:
        raise ValueError("weights of another version of the drafter: start without it")
    for part in np.split(weights, 2):
        factors, additive = np.split(part, [-math.prod(native.SIZES["recall"])])
        if not ((factors >= 1e-30) & (factors <= 1e30)).all() or not (np.abs(additive) <= 1e6).all():  # NaN is neither
            raise ValueError("its weights are NaN or out of range")
    return weights
