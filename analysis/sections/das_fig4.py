"""DAS Fig 4: accepted tokens per pass over training, for drafts from history and for a drafter that does not learn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import accepted_per_pass, policy_note, rows


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare accepted tokens per pass, step by step. Our ngram drafter, which copies only from the request's own text,
    stands for the paper's EAGLE."""
    (run,) = runs.values()
    arms = {name: rows(run, name) for name in ("das", "ngram")}
    paper = published["das_fig4"]["data"]
    colour = colours_of(["none", "das", "ngram"])
    with figure(folder / "accepted.png") as axes:
        for name, steps in arms.items():
            axes.plot(
                [r["step"] for r in steps], [accepted_per_pass([r]) for r in steps], color=colour[name], label=name
            )
        axes.set(
            xlabel="training step",
            ylabel="accepted tokens per pass",
            ylim=(0, None),
            title="Fig 4: acceptance over training",
        )
        axes.legend()
    last = max(row["epoch"] for row in arms["das"])
    ends = {
        name: [accepted_per_pass([r for r in steps if r["epoch"] == epoch]) for epoch in (0, last)]
        for name, steps in arms.items()
    }
    das, eagle = paper["das"], paper["eagle_static"]
    return Section(
        title,
        f"{policy_note(run)} Accepted tokens per pass in the first and the last epoch; in the paper, in the first and "
        "the last 100 of 800 steps. ngram, which drafts from the request's own text alone, stands in for a drafter "
        "that does not learn.",
        [
            Line("history (DAS): first → last", plotted=f"{das[0]} → {das[-1]}", engine=arrow(ends["das"])),
            Line(
                "static drafter (paper: EAGLE; ours: ngram)",
                plotted=f"{eagle[0]} → {eagle[-1]}",
                engine=arrow(ends["ngram"]),
            ),
        ],
        "The small policy's responses are much alike, so acceptance is high from the second epoch on. No EAGLE head "
        "was trained for it.",
        ["accepted.png"],
        orderings=[
            Ordering(
                "acceptance of drafts from history grows over training",
                ends["das"][1] > ends["das"][0] if last else None,
                arrow(ends["das"]),
                das[-1] / das[0],
                ends["das"][1] / ends["das"][0] if ends["das"][0] else None,
                " times the first",
            ),
            Ordering(
                "at the end more tokens are accepted from history than from the static drafter",
                ends["das"][1] > ends["ngram"][1],
                f"{ends['das'][1]:.2f} from history, {ends['ngram'][1]:.2f} from ngram",
                das[-1] / eagle[-1],
                ends["das"][1] / ends["ngram"][1] if ends["ngram"][1] else None,
                " times as many",
            ),
        ],
    )


def arrow(values: list[float]) -> str:
    """Return the values as text, with arrows between them."""
    return " → ".join(f"{value:.2f}" for value in values)
