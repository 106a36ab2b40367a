"""DAS Fig 6: compare drafts from three scopes: the problem's texts, these with the request's own text, all problems'
texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import accepted_per_pass, last_half, policy_note, rows, total

# drafter.scope -> its name in published.json
SCOPES = {"problem": "problem_only", "problem+request": "problem_plus_request", "global+request": "global_plus_request"}


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare accepted tokens per pass, and the time of drafting per token, in the second half of the steps."""
    (run,) = runs.values()
    paper = published["das_fig6"]["data"]
    arms = {scope: rows(run, f"scope_{scope}") for scope in SCOPES}
    accepted = {scope: accepted_per_pass(last_half(steps)) for scope, steps in arms.items()}
    cost_ms = {scope: 1e3 * total(last_half(s), "draft_s") / total(last_half(s), "tokens") for scope, s in arms.items()}
    colour = colours_of(["none", *SCOPES])
    with figure(folder / "scope.png", panels=2) as (left, right):
        for scope, steps in arms.items():
            numbers = [r["step"] for r in steps]
            left.plot(numbers, [accepted_per_pass([r]) for r in steps], color=colour[scope], label=scope)
            right.plot(numbers, [1e3 * r["draft_s"] / r["tokens"] for r in steps], color=colour[scope], label=scope)
        left.set(
            xlabel="training step",
            ylabel="accepted tokens per pass",
            ylim=(0, None),
            title="Fig 6 left: acceptance by scope",
        )
        right.set(
            xlabel="training step", ylabel="drafting, ms per token", ylim=(0, None), title="Fig 6 right: cost by scope"
        )
        left.legend()
    plotted = {
        scope: paper["accepted"][key].get("mean", "within 0.03 of problem scope") for scope, key in SCOPES.items()
    }
    lines = [
        Line(
            f"{scope}: accepted tokens per pass; drafting, ms per token",
            plotted=f"{plotted[scope]}; {paper['draft_ms_per_token'][key]['mean']}",
            engine=f"{accepted[scope]:.2f}; {cost_ms[scope]:.4f}",
        )
        for scope, key in SCOPES.items()
    ]
    return Section(
        title,
        f"{policy_note(run)} Second half of the steps; in the paper, steps 203-343.",
        lines,
        "Our index keeps the request's own text in the problem's index. It also falls back on other problems in every "
        "scope (drafter.cross_problem_tokens). The scope therefore changes less here than in the paper.",
        ["scope.png"],
        orderings=[
            Ordering(
                "problem scope has at least as many tokens accepted as global scope",
                accepted["problem"] >= accepted["global+request"],
                f"{accepted['problem']:.2f} with problem scope, {accepted['global+request']:.2f} with global scope",
                paper["accepted"]["problem_only"]["mean"] / paper["accepted"]["global_plus_request"]["mean"],
                accepted["problem"] / accepted["global+request"] if accepted["global+request"] else None,
                " times as many",
            ),
            Ordering(
                "drafting from the problem's text alone costs least",
                cost_ms["problem"] <= min(cost_ms.values()),
                ", ".join(f"{scope} {1e3 * value:.1f} us per token" for scope, value in cost_ms.items()),
                paper["draft_ms_per_token"]["problem_only"]["mean"] * 1e3,
                1e3 * cost_ms["problem"],
                " us per token",
            ),
        ],
    )
