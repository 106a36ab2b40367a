"""DAS Fig 7: the window, which is the number of past epochs in the history of responses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import Rows, accepted_per_pass, arm_names, last_half, policy_note, rows, total


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare accepted tokens per pass, and the time of drafting, by window, in the second half of the steps.

    Drafting time is divided by requests and passes, which gives the time of one draft. The time per emitted token would
    also fall with acceptance, because fewer passes draft.
    """
    (run,) = runs.values()
    paper = published["das_fig7"]["data"]
    windows = [int(name.removeprefix("window_")) for name in arm_names(run) if name.startswith("window_")]
    arms = {window: rows(run, f"window_{window}") for window in windows}
    accepted = [accepted_per_pass(last_half(arms[w])) for w in windows]
    draft_us = [1e6 * total(last_half(arms[w]), "draft_s") / total(last_half(arms[w]), "passes") for w in windows]
    token_us = [1e6 * total(last_half(arms[w]), "draft_s") / total(last_half(arms[w]), "tokens") for w in windows]
    _draw(arms, draft_us, folder / "window.png")
    epochs = 1 + max(row["epoch"] for row in arms[windows[0]])
    lines = [
        Line(
            f"window {w}: accepted tokens per pass; drafting, us per draft, us per emitted token",
            engine=f"{a:.2f}; {d:.1f}; {t:.1f}",
        )
        for w, a, d, t in zip(windows, accepted, draft_us, token_us, strict=True)
    ]
    lines += [
        Line(
            f"{key.replace('_', ' ')} iterations (paper): accepted; us per token",
            plotted=f"{paper['accepted'][key]['mean']}; {1e3 * paper['draft_ms_per_token'][key]['mean']:.2f}",
        )
        for key in paper["accepted"]
    ]
    return Section(
        title,
        f"{policy_note(run)} {epochs} epochs; second half of the steps. Learning rate "
        f"{read.config(run)['trainer']['learning_rate']:g}.",
        lines,
        "Windows are counted in epochs: in a run of 8 epochs, a window of 16 holds everything. A draft is one look-up "
        "for one request in one pass, with all that the drafter and the budget do for it.",
        ["window.png"],
        orderings=[
            Ordering(
                "the longer the window, the more tokens are accepted",
                accepted == sorted(accepted) and accepted[-1] > accepted[0] if epochs > 2 else None,
                ", ".join(f"window {w}: {a:.2f}" for w, a in zip(windows, accepted, strict=True)),
                paper["accepted"]["window_all"]["mean"] / paper["accepted"]["window_4"]["mean"],
                accepted[-1] / accepted[0] if accepted[0] else None,
                " times as many, longest against shortest",
            ),
            Ordering(
                "drafting costs more with a longer window",
                bool(np.polyfit(range(len(draft_us)), draft_us, 1)[0] > 0),
                ", ".join(f"window {w}: {d:.1f} us per draft" for w, d in zip(windows, draft_us, strict=True)),
                paper["draft_ms_per_token"]["window_all"]["mean"] / paper["draft_ms_per_token"]["window_4"]["mean"],
                draft_us[-1] / draft_us[0],
                " times as much, longest against shortest",
            ),
        ],
    )


def _draw(arms: Mapping[int, Rows], draft_us: Sequence[float], path: Path) -> None:
    """Draw, left: accepted tokens per pass by step, one line for each window. Right: time of a draft by window."""
    names = [str(window) for window in arms]
    colour = colours_of(["none", *names])
    with figure(path, panels=2) as (left, right):
        for name, steps in zip(names, arms.values(), strict=True):
            left.plot(
                [r["step"] for r in steps],
                [accepted_per_pass([r]) for r in steps],
                color=colour[name],
                label=f"window {name}",
            )
        left.set(
            xlabel="training step",
            ylabel="accepted tokens per pass",
            ylim=(0, None),
            title="Fig 7 left: acceptance by window",
        )
        left.legend()
        right.bar(names, draft_us, color=[colour[name] for name in names])
        right.set(xlabel="window (epochs)", ylabel="us per draft", title="Fig 7 right: cost by window")
