"""DAS (arXiv 2511.13841), Fig 6: from which texts drafts come."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from analysis.report import Line, Section
from das.drafter import HistoryDrafter
from experiments.papers.replayed import FIXED, MAX_TOKENS, Setting, simulated
from experiments.simulate.arms import Arm
from experiments.simulate.rollouts import grouped
from experiments.simulate.workload import Workload


class OneProblem(HistoryDrafter):
    """Drafts from the texts of all problems alike: they count as one problem."""

    def __init__(self) -> None:
        super().__init__(cross_problem_tokens=0)

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        super().begin(request, "all", prompt, seed)


def late_accepted(setting: Setting, works: Sequence[Workload], name: str, drafter: Callable[[], HistoryDrafter]) -> str:
    """Return as text the accepted tokens per pass in the last half of the steps, with drafts of 16 tokens. works: the
    steps. name: the drafter's name, for the progress."""
    steps = simulated(Arm(FIXED, drafter), works, setting.times).steps[len(works) // 2 :]
    accepted = f"{sum(s.num_accepted for s in steps) / sum(s.passes for s in steps):.2f}"
    setting.progress.note(f"accepted per pass, {name}: {accepted}")
    return accepted


def draft_scope(setting: Setting) -> Section:
    """Make the section of Fig 6: compare drafts from the problem's texts alone, from these and a few of other problems,
    and from the texts of all problems."""
    paper = setting.published["das_fig6"]["data"]["accepted"]
    # Four epochs, each with 8 responses to each problem.
    works = grouped(setting.synthesis.make(int(setting.task.scope_problems), 32, MAX_TOKENS, seed=3), 8)
    drafters: dict[str, Callable[[], HistoryDrafter]] = {
        "problem": partial(HistoryDrafter, cross_problem_tokens=0),
        "default": HistoryDrafter,
        "global": OneProblem,
    }
    problem, default, everything = (
        late_accepted(setting, works, f"scope {name}", drafter) for name, drafter in drafters.items()
    )
    return Section(
        "Fig 6: scope",
        f"{setting.task.scope_problems} problems x 8 x 4 epochs; accepted tokens per pass in "
        "the last two epochs, fixed drafts of 16.",
        [
            Line("problem + request", "3.05 (gap at most .03)", "", problem),
            Line("the same, and a little of other problems (the default)", "", "", default),
            Line("global + request", f"{paper['global_plus_request']['mean']}", "", everything),
        ],
        "Every drafter here sees the request's own text. The paper's drafter of the problem alone "
        f"({paper['problem_only']['mean']}) does not.",
    )
