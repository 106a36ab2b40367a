"""A saved history: the file that `HistoryDrafter.save` writes and that `load` and the option `warm` read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from das.arrays import load_arrays, pack_strings, save_arrays, token_array, unpack_strings
from das.drafter import native

_KIND = "drafter history 2"


@dataclass(frozen=True)
class SavedText:
    """A finished response behind the last tokens of its prompt."""

    problem: str
    history_tick: int  # in which it finished
    context: int  # how many of the tokens belong to the prompt
    tokens: np.ndarray  # int32 [context + response]


@dataclass(frozen=True)
class SavedHistory:
    """The window's texts in the order in which they finished, the current history tick and the learned weights."""

    weights: np.ndarray  # float64, in the order of das.drafter.prior.SIZES
    history_tick: int
    texts: list[SavedText]

    def write(self, path: Path) -> None:
        """Write the history as .npz, atomically. The keys `clock` and `clocks` hold history ticks."""
        save_arrays(
            path,
            {
                "kind": np.array(_KIND),
                "weights": self.weights,
                "clock": np.array(self.history_tick, np.int64),
                "tokens": np.concatenate([np.empty(0, np.int32), *(text.tokens for text in self.texts)]),
                "lengths": np.array([len(text.tokens) - text.context for text in self.texts], np.int64),
                "contexts": np.array([text.context for text in self.texts], np.int64),
                "clocks": np.array([text.history_tick for text in self.texts], np.int64),
                "problems": pack_strings([text.problem for text in self.texts]),
            },
        )


def read_history(path: Path) -> SavedHistory:
    """Read a saved history. Raises ValueError, in one line, for a file that holds none or a damaged one."""
    arrays = load_arrays(path, _KIND)
    if arrays["weights"].shape != native.prior_weights().shape:
        raise ValueError(f"{path}: weights of another version of the drafter")
    tokens = token_array(arrays["tokens"])
    contexts, lengths = arrays["contexts"], arrays["lengths"]
    is_negative = min(contexts.min(initial=0), lengths.min(initial=0)) < 0
    if is_negative or len(tokens) != int(contexts.sum()) + int(lengths.sum()):
        raise ValueError(f"{path}: its lengths do not add up to its {len(tokens)} tokens")
    texts = []
    start = 0
    columns = (arrays[name].tolist() for name in ("clocks", "contexts", "lengths"))
    for problem, history_tick, context, length in zip(unpack_strings(arrays["problems"]), *columns, strict=True):
        stop = start + context + length
        texts.append(SavedText(problem, history_tick, context, tokens[start:stop]))
        start = stop
    return SavedHistory(np.ascontiguousarray(arrays["weights"], np.float64), int(arrays["clock"]), texts)
