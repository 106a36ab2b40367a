"""Draw the figure of task=policy: the small policy's rollouts beside recorded rollouts of real models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.figures import OTHER_COLOURS, figure

GREYS = ("0.35", "0.5", "0.62", "0.72", "0.8")


def likeness_figure(figures: Mapping[str, Mapping[str, Any]], edges: Sequence[float], path: Path) -> None:
    """Draw lengths, accepted tokens by epoch, and the similarity of siblings.

    figures: name -> statistics (histogram, accepted_by_epoch, similarity); the first is the small policy, drawn in
    colour. edges: the histogram's bins, in median lengths; the last bin holds all longer responses.
    """
    names = list(figures)
    colours = [OTHER_COLOURS[0], *(GREYS[i % len(GREYS)] for i in range(len(names) - 1))]
    with figure(path, 3, (13, 3.8)) as (lengths, accepted, similar):
        for order, (name, colour) in reversed(list(enumerate(zip(names, colours, strict=True)))):  # the policy on top
            width = 2.0 if order == 0 else 1.2
            shares = figures[name]["histogram"]
            lengths.stairs(shares, edges, color=colour, linewidth=width, label=name)
            by_epoch = figures[name]["accepted_by_epoch"]
            accepted.plot(range(len(by_epoch)), by_epoch, ".-", color=colour, linewidth=width)
        similar.barh(np.arange(len(names)), [figures[name]["similarity"] for name in names], color=colours)
        similar.set_yticks(np.arange(len(names)), names)
        similar.invert_yaxis()
        similar.set(title="Similarity of siblings", xlabel="share of 8-grams that a sibling has too", xlim=(0, 1))
        lengths.set(title="Lengths", xlabel="length / median length", ylabel="share of responses")
        accepted.set(title="Accepted tokens a round", xlabel="epoch (8 more responses of each problem)", ylim=(0, None))
        handles, labels = lengths.get_legend_handles_labels()
        lengths.figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3)
