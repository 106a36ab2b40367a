"""DAS (arXiv 2511.13841): sections about the text that drafts come from. Cold start, scope (Fig 6), window (Fig 7),
similarity of text over training (Fig 2), lengths of a problem's responses (Fig 9)."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, Section, points
from das.drafter import HistoryDrafter
from experiments.papers.replayed import FIXED, MAX_TOKENS, Setting, simulated
from experiments.run.errors import UserError
from experiments.simulate.arms import Arm
from experiments.simulate.cluster import Step
from experiments.simulate.rollouts import grouped, read_rollouts
from experiments.simulate.scopes import OneProblem, OwnText
from experiments.simulate.workload import Workload

GRAMS = (2, 4, 8)  # tokens; the paper does not say which n its Fig 2 is about
ALL_EPOCHS = 10**6  # a window so long that no text leaves it


def ablation_epochs(setting: Setting) -> list[Workload]:
    """Return the workload of four epochs, each with 8 responses to each of task.ablation_problems problems."""
    return grouped(setting.synthesis.make(int(setting.task.ablation_problems), 32, MAX_TOKENS, seed=3), 8)


def cold_start(setting: Setting) -> Section:
    """Make the section that compares sources of drafts, epoch by epoch: the text itself, siblings, other problems, past
    epochs."""
    works = ablation_epochs(setting)
    none = simulated(Arm(), works, setting.times).steps
    variants: dict[str, Callable[[], HistoryDrafter]] = {
        "own text only": OwnText,
        "own text and siblings": partial(HistoryDrafter, window=0, cross_problem_tokens=0),
        "the same, and other problems": partial(HistoryDrafter, window=1),
        "+ history of past epochs (the default)": HistoryDrafter,
    }
    lines = []
    for name, drafter in variants.items():
        steps = simulated(Arm(FIXED, drafter), works, setting.times).steps
        lines.append(_by_epoch(name, steps, none))
        setting.progress.note(f"cold start, {name}: {lines[-1].replay}")
    warm = simulated(Arm(FIXED), [works[-1], *works[:-1]], setting.times).steps[1:]
    lines.append(_by_epoch("warm: another epoch was seen before the first", warm, none[:-1]))
    return Section(
        "Cold start: where do drafts come from?",
        f"{setting.task.ablation_problems} problems x 8 x 4 epochs, fixed drafts of 16. Tokens per pass in each epoch, "
        "and the reduction of rollout time over all of them. The paper has no such ablation.",
        lines,
        "Tokens per pass come from the response's own text first, then from siblings, then from history, which a warm "
        "start gives to the first epoch too. Fixed drafts of 16 save little time at 64 live requests: most of what "
        "they draft is wasted.",
    )


def _by_epoch(name: str, steps: Sequence[Step], none: Sequence[Step]) -> Line:
    saved = 1 - sum(s.rollout_s for s in steps) / sum(s.rollout_s for s in none)
    return Line(name, replay=" ".join(f"{s.tokens_per_pass:.2f}" for s in steps) + f", {percent(saved)}")


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
    works = ablation_epochs(setting)
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
        f"{setting.task.ablation_problems} problems x 8 x 4 epochs, as for the cold start; accepted tokens per pass in "
        "the last two epochs, fixed drafts of 16.",
        [
            Line("problem + request", "3.05 (gap at most .03)", "", problem),
            Line("the same, and a little of other problems (the default)", "", "", default),
            Line("global + request", f"{paper['global_plus_request']['mean']}", "", everything),
        ],
        "Every drafter here sees the request's own text. The paper's drafter of the problem alone "
        f"({paper['problem_only']['mean']}) does not.",
    )


def history_window(setting: Setting) -> Section:
    """Make the section of Fig 7: compare windows of history, on traces with so many responses to a problem that no text
    has to be synthetic.

    The drafter's window also counts the running epoch, so `past` epochs of history need a window of past + 1.
    """
    paper = setting.published["das_fig7"]["data"]["accepted"]
    traces = {  # name -> trace, number of prompts of each problem
        "R1-14B, one policy": ("steer_r1d_qwen14b_pos0to3", 4),
        "Llama-3B, RL steps 400 and 800": ("rg_llama3b_rl", 1),
    }
    epochs = int(setting.task.window_epochs)
    works_of = {name: recorded_epochs(setting, trace, variants) for name, (trace, variants) in traces.items()}
    lines = []
    for past in (0, 1, 4, 8, ALL_EPOCHS):
        key = "window_all" if past == ALL_EPOCHS else f"window_{past}"
        plotted = paper[key]["mean"] if past in (4, ALL_EPOCHS) else ""
        accepted = [
            late_accepted(setting, works, f"window {past + 1}", partial(HistoryDrafter, window=past + 1))
            for works in works_of.values()
        ]
        lines.append(Line("all" if past == ALL_EPOCHS else f"{past}", str(plotted), "", " / ".join(accepted)))
    sizes = " and ".join(f"{len(set(works[0].problems))} problems ({name})" for name, works in works_of.items())
    return Section(
        "Fig 7: window, in past epochs",
        f"{sizes}, x 8 x {epochs} epochs of recorded text; accepted tokens per pass in the second half of the epochs, "
        "fixed drafts of 16.",
        lines,
        "A longer window helps, and the first past epoch helps most, as in the paper. Levels differ: the paper's steps "
        "400-600 follow hundreds of updates that make a policy repeat itself. R1-14B is a single policy, so nothing of "
        "it goes stale. The second half of the 3B policy's text begins with another checkpoint than the first.",
    )


def recorded_epochs(setting: Setting, trace: str, variants: int) -> list[Workload]:
    """Return task.window_epochs epochs, each with 8 responses to each of task.window_problems problems. trace: its
    name. variants: number of prompts that each of its problems has."""
    epochs, problems = int(setting.task.window_epochs), int(setting.task.window_problems)
    (recorded,) = read_rollouts(Path(setting.task.traces) / f"{trace}.jsonl.gz")
    distinct = list(dict.fromkeys(recorded.problems))[::variants]
    count = Counter(recorded.problems)
    chosen = [problem for problem in distinct if count[problem] >= 8 * epochs][:problems]
    if not chosen:
        raise UserError(f"task.window_epochs={epochs}: no problem of {trace} has {8 * epochs} responses")
    part = recorded.part([i for i, problem in enumerate(recorded.problems) if problem in chosen])
    return grouped(part, 8)[:epochs]


def grams(tokens: np.ndarray, n: int) -> set[bytes]:
    """Return all distinct sequences of n neighbouring tokens."""
    if len(tokens) < n:
        return set()
    rows = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(tokens, np.int32), n)
    return {row.tobytes() for row in np.ascontiguousarray(rows)}


def seen_before(work: Workload, past: Workload, n: int) -> float:
    """Return which share of a response's n-grams occurs in past responses to its problem, as a mean over the responses.

    Responses shorter than n tokens and problems without past responses do not count.
    """
    known: dict[str, set[bytes]] = {}
    for i, problem in enumerate(past.problems):
        known.setdefault(problem, set()).update(grams(past.response(i), n))
    shares = []
    for i, problem in enumerate(work.problems):
        if problem in known and (of_response := grams(work.response(i), n)):
            shares.append(len(of_response & known[problem]) / len(of_response))
    if not shares:
        raise UserError(f"no response has a past one of its problem to be compared with ({n} tokens in a row)")
    return float(np.mean(shares))


def similarity(setting: Setting) -> Section:
    """Make the section of Fig 2: the share of a response's n-grams that recent responses to its problem have, over the
    training."""
    paper = setting.published["das_fig2"]["data"]
    plotted = {name: values for name, values in paper.items() if name not in ("step", "accuracy")}
    lines = [
        Line(
            f"{name}, steps 0 / 100 / 400",
            " / ".join(f"{values[paper['step'].index(step)]}" for step in (0, 100, 400)),
        )
        for name, values in plotted.items()
    ]
    (recorded,) = read_rollouts(Path(setting.task.traces) / "rg_llama3b_rl.jsonl.gz")
    chosen = set(list(dict.fromkeys(recorded.problems))[: int(setting.task.similarity_problems)])
    groups = grouped(recorded.part([i for i, p in enumerate(recorded.problems) if p in chosen]), 8)
    early, late = groups[: len(groups) // 2], groups[-(len(groups) // 2) :]
    pairs = {
        "step 400 after step 400": (early[1], early[0]),
        "step 800 after step 400": (late[-1], early[0]),
        "step 800 after step 800": (late[-1], late[-2]),
    }
    for name, (now, past) in pairs.items():
        shares = " / ".join(f"{seen_before(now, past, n):.2f}" for n in GRAMS)
        lines.append(Line(f"Llama-3B trained by RL, {name}: n = {', '.join(map(str, GRAMS))}", replay=shares))
    return Section(
        "Fig 2: similarity with recent history",
        "Share of a response's runs of n tokens that 8 recent responses of its problem contain: for "
        f"{len(chosen)} problems of a 3B policy, recorded at two steps of its RL. The paper states neither n nor what "
        "recent means.",
        lines,
        "The paper's similarity rises over 400 steps from .5-.6 to .7-.8. The recorded RL of the 3B policy has two "
        "points, both late. Neither n nor `recent` is known, so only the direction can be compared, not the levels.",
    )


def response_lengths(setting: Setting) -> Section:
    """Make the section of Fig 9: the mean and the greatest length of the responses to each problem."""
    paper = setting.published["das_fig9"]["data"]
    members: dict[str, list[int]] = {}
    for problem, length in zip(setting.recorded.problems, setting.recorded.lengths.tolist(), strict=True):
        members.setdefault(problem, []).append(length)
    means, longest = (np.array([f(lengths) for lengths in members.values()]) for f in (np.mean, np.max))
    ratio = longest / means
    drawn = points(
        setting.folder / "das_fig9.png",
        means,
        longest,
        "mean length of a problem's responses (tokens)",
        "longest (tokens)",
        "Fig 9",
    )
    counts = [len(lengths) for lengths in members.values()]
    longest_range = f"{longest.min():.0f} to {longest.max():.0f}, no cap"
    return Section(
        "Fig 9: mean and longest response of a problem",
        f"{len(members)} recorded problems with {min(counts)} to {max(counts)} responses each; the paper's points are "
        "over 90 epochs.",
        [
            Line("means", "{} to {}".format(*paper["mean_range"]), "", f"{means.min():.0f} to {means.max():.0f}"),
            Line("longest", f"many at the cap, {paper['cap']}", "", longest_range),
            Line(
                "longest over mean: least, median, most",
                replay=f"{ratio.min():.2f}, {np.median(ratio):.2f}, {ratio.max():.2f}",
            ),
            Line("correlation of the two", replay=f"{np.corrcoef(means, longest)[0, 1]:.2f}"),
        ],
        "There are fewer problems here, fewer responses of each, and other policies; no response is cut at a cap. The "
        "longest follows the mean, at 1.3 to 3 times of it. In the paper even problems with means below 1k reach the "
        "cap once in 90 epochs, which 32 to 110 responses do not show.",
        [drawn],
    )
