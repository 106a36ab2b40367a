"""DAS Fig 6: which text the drafter sees: the problem's, also the request's own, or everyone's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.report import Line, Ordering, Section
from analysis.sections.arms import accepted_per_round, colours, figure, last_half, policy_note, rows, total

SCOPES = {"problem": "problem_only", "problem+request": "problem_plus_request", "global+request": "global_plus_request"}


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Accepted tokens a round, and what drafting a token costs, in the second half of the steps."""
    (run,) = runs.values()
    paper = published["das_fig6"]["data"]
    arms = {scope: rows(run, f"scope_{scope}") for scope in SCOPES}
    accepted = {scope: accepted_per_round(last_half(mine)) for scope, mine in arms.items()}
    cost = {scope: 1e3 * total(last_half(m), "draft_s") / total(last_half(m), "tokens") for scope, m in arms.items()}
    colour = colours(["none", *SCOPES])
    with figure(folder / "scope.png", panels=2) as (left, right):
        for scope, mine in arms.items():
            steps = [r["step"] for r in mine]
            left.plot(steps, [accepted_per_round([r]) for r in mine], color=colour[scope], label=scope)
            right.plot(steps, [1e3 * r["draft_s"] / r["tokens"] for r in mine], color=colour[scope], label=scope)
        left.set(xlabel="training step", ylabel="accepted tokens a round", ylim=(0, None), title="Fig 6 left")
        right.set(xlabel="training step", ylabel="drafting, ms a token", ylim=(0, None), title="Fig 6 right")
        left.legend()
    plotted = {scope: paper["accepted"][key].get("mean", "within 0.03 of it") for scope, key in SCOPES.items()}
    lines = [
        Line(
            f"{scope}: accepted a round; drafting, ms a token",
            f"{plotted[scope]}; {paper['draft_ms_per_token'][key]['mean']}",
            "",
            "",
            f"{accepted[scope]:.2f}; {cost[scope]:.4f}",
        )
        for scope, key in SCOPES.items()
    ]
    return Section(
        title,
        f"{policy_note(run)} Second half of the steps; the paper: steps 203-343.",
        lines,
        "Our index keeps the request's own text in the problem's index, and falls back on other problems anyway "
        "(drafter.cross_problem_tokens): scope changes less here than there.",
        ["scope.png"],
        orderings=[
            Ordering(
                "problem scope is accepted at least as much as global scope",
                accepted["problem"] >= accepted["global+request"],
                f"{accepted['problem']:.2f}, {accepted['global+request']:.2f} for global",
            ),
            Ordering(
                "drafting from the problem's text costs least",
                cost["problem"] <= min(cost.values()),
                ", ".join(f"{scope} {1e3 * value:.1f} us" for scope, value in cost.items()),
            ),
        ],
    )
