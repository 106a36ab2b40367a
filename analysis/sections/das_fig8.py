"""DAS Fig 8: a forward pass takes a constant time plus a time for each token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import percent


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Show timed passes of the real engine with an affine fit, and the paper's points beside them."""
    (run,) = runs.values()
    paper = published["das_fig8"]["data"]
    passes = np.array(read.latency(run)["passes"], float)
    tokens, seconds = passes[:, 1], passes[:, 3]
    forms = read.result(run)["forms"]
    affine = forms["affine"]["coefficients"]
    _draw(tokens, seconds, affine, paper, folder / "latency.png")
    first = paper["fits"][0]
    best = min(forms, key=lambda name: forms[name]["error"])
    return Section(
        title,
        "Every combination of live requests and drafted tokens, timed in the real engine. Errors are measured on "
        "passes that the fit did not see.",
        [
            Line(
                "fixed time per pass, time per token",
                plotted=f"{first['c_base_ms']} ms, {first['c_tok_us']} us",
                engine=f"{1e3 * affine['c_base']:.2f} ms, {1e6 * affine['c_tok']:.1f} us",
            ),
            Line(
                "mean relative error of the affine form",
                claimed="about 12 %",
                engine=percent(forms["affine"]["error"]),
            ),
            Line("the best form here, and its error", engine=f"{best}, {percent(forms[best]['error'])}"),
        ],
        "On a CPU a live request costs more than a drafted token of the same request. No function of the number of "
        "tokens alone can express that. The form `drafting` counts both, and budgets use it.",
        ["latency.png"],
        orderings=[
            Ordering(
                "latency is affine in the number of tokens, within the paper's 12 %",
                forms["affine"]["error"] <= 0.12,
                f"mean relative error {percent(forms['affine']['error'])}",
                12,
                100 * forms["affine"]["error"],
                " % error",
            ),
        ],
    )


def _draw(
    tokens: np.ndarray, seconds: np.ndarray, affine: Mapping[str, float], paper: Mapping[str, Any], path: Path
) -> None:
    """Draw, left: our passes by their tokens, and the affine fit. Right: the paper's passes."""
    sizes = np.unique(tokens)
    with figure(path, panels=2) as (left, right):
        left.plot(tokens, 1e3 * seconds, ".", markersize=2, color="#BBBBBB", label="passes")
        left.plot(sizes, [1e3 * np.median(seconds[tokens == n]) for n in sizes], ".", color="#000000", label="median")
        left.plot(sizes, 1e3 * (affine["c_base"] + affine["c_tok"] * sizes), color="#0072B2", label="affine fit")
        left.set(
            xlabel="tokens in the pass",
            ylabel="time of a pass (ms)",
            ylim=(0, 1.2e3 * np.quantile(seconds, 0.999)),
            title="Fig 8: this engine",
        )
        left.legend()
        right.plot(paper["tokens"], paper["latency_ms"], "o-", color="#0072B2")
        right.set(
            xlabel="tokens in the pass", ylabel="time of a pass (ms)", ylim=(0, None), title="Fig 8: the paper's, 7B"
        )
