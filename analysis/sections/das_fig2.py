"""DAS Fig 2: similarity of a problem's responses to its recent responses, and similarity of epochs to each other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import policy_note, rows

N = 4  # tokens of an n-gram; the paper does not tell its number

Grams = set[tuple[int, ...]]


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compute the share of each epoch's n-grams that also occur in other epochs, in responses to the same problem."""
    (run,) = runs.values()
    epochs = grams_by_epoch(run)
    matrix = np.array([[similarity(grams, other) for other in epochs] for grams in epochs])
    recent = [float(matrix[epoch, epoch - 1]) for epoch in range(1, len(epochs))]
    _draw(matrix, recent, folder / "similarity.png")
    near, far = near_and_far(matrix)
    middle = (len(recent) + 1) // 2
    first_half, second_half = [float(np.mean(part)) if part else 0.0 for part in (recent[:middle], recent[middle:])]
    measured = f"{recent[0]:.2f} → {recent[-1]:.2f}" if recent else ""
    return Section(
        title,
        f"{policy_note(run)} The measure is the share of the {N}-grams of an epoch's responses that also occur in the "
        "same problem's responses of the epoch before (left) or of any other epoch (right), as a mean over problems. "
        "The paper says neither what n it uses nor how many epochs its recent history spans.",
        [
            Line(
                "similarity to recent history, first → last",
                plotted="0.61 → 0.80 (Qwen2.5-7B), 0.51 → 0.72 (R1-7B)",
                engine=measured,
            ),
            Line(
                "similarity of neighbouring epochs / of epochs at least half the run apart",
                plotted="0.5-0.9, high near the diagonal",
                engine=f"{near:.2f} / {far:.2f}" if far else "",
            ),
        ],
        "Our policy is trained with a learning rate a hundred times higher, for a tenth of the steps. Its similarity "
        "rises within a few epochs.",
        ["similarity.png"],
        orderings=[
            Ordering(
                "responses grow more similar to recent ones (second half of the epochs against the first half)",
                second_half > first_half if len(recent) > 1 else None,
                measured,
                0.20,  # the mean of 0.61 to 0.80 and 0.51 to 0.72
                recent[-1] - recent[0] if recent else None,
                " more",
            ),
            Ordering(
                "neighbouring epochs are more similar than distant ones",
                near > far if far else None,
                f"{near:.2f} for neighbouring epochs, {far:.2f} for distant ones",
            ),
        ],
    )


def _draw(matrix: np.ndarray, recent: list[float], path: Path) -> None:
    """Draw, left: each epoch's similarity to the epoch before it. Right: the similarity of each pair of epochs. matrix:
    [epochs, epochs]. recent: the values on the left."""
    with figure(path, panels=2) as (left, right):
        left.plot(range(1, len(matrix)), recent, ".-", color="#0072B2")
        left.set(
            xlabel="epoch",
            ylabel=f"share of {N}-grams seen before",
            ylim=(0, 1),
            title="Fig 2 left: similarity to the epoch before",
        )
        shown = right.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
        right.figure.colorbar(shown, label=f"share of {N}-grams in common")
        right.grid(visible=False)
        right.set(xlabel="compared with epoch", ylabel="epoch", title="Fig 2 right: similarity between epochs")


def grams_by_epoch(run: Path) -> list[dict[str, Grams]]:
    """Return for each epoch: problem -> the n-grams of its responses, from the arm without speculation."""
    epochs: list[dict[str, Grams]] = []
    for row in rows(run, "none"):
        while len(epochs) <= row["epoch"]:
            epochs.append({})
        for response in read.rollout(run / "arms" / "none", row["step"]):
            ids = response["response_ids"]
            grams = epochs[row["epoch"]].setdefault(response["problem_id"], set())
            grams.update(zip(*(ids[i:] for i in range(N)), strict=False))
    return epochs


def similarity(grams: Mapping[str, Grams], other: Mapping[str, Grams]) -> float:
    """Return the share of the n-grams in `grams` that are also in `other`, as a mean over the problems in both
    dicts."""
    common = [problem for problem in grams if problem in other and grams[problem]]
    return float(np.mean([len(grams[p] & other[p]) / len(grams[p]) for p in common])) if common else 0.0


def near_and_far(matrix: np.ndarray) -> tuple[float, float]:
    """Return the mean similarity of neighbouring epochs, and of epochs at least half the run apart (0 if there are
    none)."""
    n = len(matrix)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    near, far = matrix[distance == 1], matrix[distance >= max(2, n // 2)]
    return float(near.mean()) if near.size else 0.0, float(far.mean()) if far.size else 0.0
