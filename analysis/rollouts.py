"""Words of figures about the responses of rollouts: their lengths, when they end, and how much text they share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.record import Record

Grams = Mapping[str, set[tuple[int, ...]]]  # problem -> its n-grams


def half_ended(line: Mapping[str, Any]) -> float:
    """Return the seconds after which at most half of a rollout's requests are live. line: its timeline."""
    live = line["step_live"]
    return float(line["step_time_s"][next((i for i, n in enumerate(live) if n <= 0.5 * live[0]), -1)])


def lengths_by_group(run: Record) -> dict[tuple[int, str], list[int]]:
    """Return the lengths of responses by (epoch, problem), from the arm without speculation."""
    lengths: dict[tuple[int, str], list[int]] = {}
    for row in run["none"]:
        for response in run.rollout("arms/none", row["step"]):
            lengths.setdefault((row["epoch"], response["problem_id"]), []).append(len(response["response_ids"]))
    return lengths


def similarities(run: Record, n: int) -> np.ndarray:
    """Return the similarity of each epoch's responses to those of each other epoch [epochs, epochs]: the share of the
    epoch's n-grams that the other also has, for the same problem, as a mean over problems."""
    epochs = grams_by_epoch(run, n)
    return np.array([[similarity(grams, other) for other in epochs] for grams in epochs])


def grams_by_epoch(run: Record, n: int) -> list[Grams]:
    """Return for each epoch the n-grams of its responses, from the arm without speculation."""
    epochs: list[dict[str, set[tuple[int, ...]]]] = []
    for row in run["none"]:
        while len(epochs) <= row["epoch"]:
            epochs.append({})
        for response in run.rollout("arms/none", row["step"]):
            ids = response["response_ids"]
            grams = epochs[row["epoch"]].setdefault(response["problem_id"], set())
            grams.update(zip(*(ids[i:] for i in range(n)), strict=False))
    return list(epochs)


def similarity(grams: Grams, other: Grams) -> float:
    """Return the share of the n-grams in `grams` that are also in `other`, as a mean over the problems in both."""
    common = [problem for problem in grams if problem in other and grams[problem]]
    return float(np.mean([len(grams[p] & other[p]) / len(grams[p]) for p in common])) if common else 0.0


def distant(matrix: np.ndarray, least: int, most: int) -> float:
    """Return the mean similarity of epochs that lie from `least` to `most` epochs apart; 0 if there are none."""
    distance = np.abs(np.subtract.outer(np.arange(len(matrix)), np.arange(len(matrix))))
    found = matrix[(least <= distance) & (distance <= most)]
    return float(found.mean()) if found.size else 0.0
