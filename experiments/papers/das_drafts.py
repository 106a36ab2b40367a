"""DAS (arXiv 2511.13841): what drafts are made of. Cold start, scope (Fig 6), window (Fig 7), similarity of text over
training (Fig 2), lengths of a problem's responses (Fig 9), tree against array (Fig 5)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves, points
from das.replay.cluster import Step
from das.replay.workload import Workload
from experiments.papers.replayed import Setting, arm, percent
from experiments.recorded.rollouts import grouped, read_rollouts
from experiments.recorded.suffix_array import against_array
from experiments.run.errors import UserError

GRAMS = (2, 4, 8)  # tokens; the paper does not say which n its Fig 2 is about
CORPORA = (10_000, 50_000, 100_000, 500_000)  # tokens; of Fig 5, without its million
EVERY = 10**6  # a window that nothing leaves


def sections(at: Setting) -> list[Section]:
    """All sections of this module."""
    return [cold_start(at), scope(at), window(at), similarity(at), lengths(at), structures(at)]


def cold_start(at: Setting) -> Section:
    """What each source of drafts is worth, epoch by epoch; and trees that are warm from the start."""
    works = grouped(at.synthesis.make(int(at.task.ablation_problems), 32, 16384, seed=3), 8, 0)
    fixed = {"name": "fixed", "tokens": 16}
    none = arm(works, at.times, 256, None, 1, 16384)
    variants: dict[str, dict[str, Any]] = {
        "own text only": {"scope": "own"},
        "own text and siblings": {"scope": "siblings"},
        "the same, and other problems": {"window": 1},
        "+ history of past epochs (the default)": {},
    }
    lines = []
    for name, options in variants.items():
        steps = arm(works, at.times, 256, fixed, 1, 16384, **options)
        lines.append(_by_epoch(name, steps, none))
        at.say.note(f"cold start, {name}: {lines[-1].replay}")
    warm = arm([works[-1], *works[:-1]], at.times, 256, fixed, 1, 16384)[1:]
    lines.append(_by_epoch("warm: another epoch was seen before the first", warm, none[:-1]))
    return Section(
        "Cold start: where do drafts come from?",
        f"{at.task.ablation_problems} problems x 8 x 4 epochs, fixed drafts of 16. Tokens per pass in each epoch, and "
        "the reduction of rollout time over all of them. The paper has no such ablation.",
        lines,
        "Tokens per pass come from own text first, then siblings, then history, which a warm start gives to the first "
        "epoch too. Fixed drafts of 16 save little time at 64 live requests: most of what they draft is wasted.",
    )


def _by_epoch(name: str, steps: Sequence[Step], none: Sequence[Step]) -> Line:
    saved = 1 - sum(s.rollout_s for s in steps) / sum(s.rollout_s for s in none)
    return Line(name, replay=" ".join(f"{s.tokens_per_pass:.2f}" for s in steps) + f", {percent(saved)}")


def accepted(at: Setting, works: Sequence[Workload], **options: Any) -> str:
    """Accepted tokens a round in the second half of the steps, fixed drafts of 16."""
    fixed = {"name": "fixed", "tokens": 16}
    steps = arm(works, at.times, 256, fixed, 1, 16384, **options)[len(works) // 2 :]
    found = f"{sum(s.num_accepted for s in steps) / sum(s.passes for s in steps):.2f}"
    at.say.note(f"accepted a round, {options}: {found}")
    return found


def scope(at: Setting) -> Section:
    """Fig 6, on distinct problems."""
    six = at.published["das_fig6"]["data"]["accepted"]
    works = grouped(at.synthesis.make(int(at.task.ablation_problems), 32, 16384, seed=3), 8, 0)
    return Section(
        "Fig 6: scope",
        f"{at.task.ablation_problems} problems x 8 x 4 epochs, as for the cold start; accepted tokens a round in the "
        "last two epochs, fixed drafts of 16.",
        [
            Line("problem only", f"{six['problem_only']['mean']}", "", accepted(at, works, scope="problem")),
            Line("problem + request", "3.05 (gap at most .03)", "", accepted(at, works, scope="problem+request")),
            Line(
                "global + request",
                f"{six['global_plus_request']['mean']}",
                "",
                accepted(at, works, scope="global+request"),
            ),
        ],
        "The request's own text is worth more here than there.",
    )


def window(at: Setting) -> Section:
    """Fig 7, on traces with many samples of a problem, so that no text is synthetic. The drafter's window counts the
    epoch that runs: `past` epochs of history are a window of past + 1."""
    seven = at.published["das_fig7"]["data"]["accepted"]
    names = {
        "R1-14B, one policy": ("steer_r1d_qwen14b_pos0to3", 4),
        "Llama-3B, RL steps 400 and 800": ("rg_llama3b_rl", 1),
    }
    epochs, problems = int(at.task.window_epochs), int(at.task.window_problems)
    texts = {}
    for name, (trace, variants) in names.items():
        (whole,) = read_rollouts(Path(at.task.traces) / f"{trace}.jsonl.gz")
        distinct = list(dict.fromkeys(whole.problems))[::variants]
        count = Counter(whole.problems)
        chosen = [problem for problem in distinct if count[problem] >= 8 * epochs][:problems]
        if not chosen:
            raise UserError(f"task.window_epochs={epochs}: no problem of {trace} has {8 * epochs} responses")
        mine = whole.part([i for i, problem in enumerate(whole.problems) if problem in chosen])
        texts[name] = grouped(mine, 8, 0)[:epochs]
    lines = []
    for past in (0, 1, 4, 8, EVERY):
        plotted = seven["window_all" if past == EVERY else f"window_{past}"]["mean"] if past in (4, EVERY) else ""
        found = [accepted(at, works, window=past + 1) for works in texts.values()]
        lines.append(Line("all" if past == EVERY else f"{past}", str(plotted), "", " / ".join(found)))
    sizes = " and ".join(f"{len(set(works[0].problems))} problems ({name})" for name, works in texts.items())
    return Section(
        "Fig 7: window, in past epochs",
        f"{sizes}, x 8 x {epochs} epochs of recorded text; accepted tokens a round in the second half of the epochs, "
        "fixed drafts of 16.",
        lines,
        "A longer window helps, most the first past epoch, as in the paper. Levels differ: the paper's steps "
        "400-600 follow hundreds of updates that make a policy repeat itself. R1-14B is one policy, of which "
        "nothing goes stale; the 3B policy's second half begins with another checkpoint than its first.",
    )


def grams(tokens: np.ndarray, n: int) -> set[bytes]:
    """All runs of n tokens."""
    if len(tokens) < n:
        return set()
    rows = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(tokens, np.int32), n)
    return {row.tobytes() for row in np.ascontiguousarray(rows)}


def seen_before(work: Workload, past: Workload, n: int) -> float:
    """Share of the n-grams of responses that past responses of their problem hold; mean over responses long enough."""
    known: dict[str, set[bytes]] = {}
    for i, problem in enumerate(past.problems):
        known.setdefault(problem, set()).update(grams(past.response(i), n))
    shares = []
    for i, problem in enumerate(work.problems):
        if problem in known and (mine := grams(work.response(i), n)):
            shares.append(len(mine & known[problem]) / len(mine))
    if not shares:
        raise UserError(f"no response has a past one of its problem to be compared with ({n} tokens in a row)")
    return float(np.mean(shares))


def similarity(at: Setting) -> Section:
    """Fig 2: how much of a response was in the problem's recent responses, as training goes on."""
    two = at.published["das_fig2"]["data"]
    (whole,) = read_rollouts(Path(at.task.traces) / "rg_llama3b_rl.jsonl.gz")
    chosen = list(dict.fromkeys(whole.problems))[: int(at.task.similarity_problems)]
    groups = grouped(whole.part([i for i, p in enumerate(whole.problems) if p in set(chosen)]), 8, 0)
    early, late = groups[: len(groups) // 2], groups[-(len(groups) // 2) :]
    pairs = {
        "step 400 after step 400": (early[1], early[0]),
        "step 800 after step 400": (late[-1], early[0]),
        "step 800 after step 800": (late[-1], late[-2]),
    }
    lines = [
        Line(f"{name}, steps 0 / 100 / 400", " / ".join(f"{two[name][two['step'].index(s)]}" for s in (0, 100, 400)))
        for name in two
        if name not in ("step", "accuracy")
    ]
    for name, (now, past) in pairs.items():
        found = " / ".join(f"{seen_before(now, past, n):.2f}" for n in GRAMS)
        lines.append(Line(f"Llama-3B trained by RL, {name}: n = {', '.join(map(str, GRAMS))}", replay=found))
    figures = []
    if at.task.engine_run is not None:
        steps = read_rollouts(Path(at.task.engine_run) / "arms" / "none")
        seen = {n: by_step(steps, n) for n in GRAMS}
        for n, (_, shares) in seen.items():
            quarter = max(1, len(shares) // 4)
            first, last = np.mean(shares[:quarter]), np.mean(shares[-quarter:])
            lines.append(Line(f"small policy, first / last quarter: n = {n}", engine=f"{first:.2f} / {last:.2f}"))
        drawn: dict[str, tuple[Any, Any]] = {
            f"{name} (paper)": (np.array(two["step"]) / two["step"][-1], two[name])
            for name in two
            if name not in ("step", "accuracy")
        }
        drawn |= {f"small policy, n = {n}": (np.array(x) / len(steps), y) for n, (x, y) in seen.items()}
        figures.append(
            curves(at.folder / "das_fig2.png", drawn, "share of the steps", "seen in the epoch before", "Fig 2")
        )
    return Section(
        "Fig 2: similarity with recent history",
        f"Share of the runs of n tokens of a response that 8 recent responses of its problem hold; {len(chosen)} "
        "problems of a 3B policy recorded at two steps of its RL; the small policy of task.engine_run against its "
        "epoch before. The paper does not state n, nor what recent means.",
        lines,
        "The paper's similarity rises over 400 steps from .5-.6 to .7-.8. Recorded RL of the 3B policy has two "
        "points of it, both late; the small policy is warm-started and trained for 8 epochs of 4 steps. Neither n "
        "nor `recent` is known, so levels cannot be compared; what can is the direction.",
        figures,
    )


def by_step(steps: Sequence[Workload], n: int) -> tuple[list[int], list[float]]:
    """Of each step whose problems all came before: its number, and the share of it that was in their last responses."""
    last: dict[str, Workload] = {}
    numbers, shares = [], []
    for number, work in enumerate(steps, 1):
        problems = list(dict.fromkeys(work.problems))
        if all(problem in last for problem in problems):
            parts = [seen_before(work, last[problem], n) for problem in problems]
            numbers.append(number)
            shares.append(float(np.mean(parts)))
        for problem in problems:
            last[problem] = work.part([i for i, p in enumerate(work.problems) if p == problem])
    return numbers, shares


def lengths(at: Setting) -> Section:
    """Fig 9: mean against longest response of each problem."""
    nine = at.published["das_fig9"]["data"]
    members: dict[str, list[int]] = {}
    for problem, length in zip(at.recorded.problems, at.recorded.lengths.tolist(), strict=True):
        members.setdefault(problem, []).append(length)
    means, longest = (np.array([f(own) for own in members.values()]) for f in (np.mean, np.max))
    ratio = longest / means
    drawn = points(
        at.folder / "das_fig9.png",
        means,
        longest,
        "mean length of a problem's responses (tokens)",
        "longest (tokens)",
        "Fig 9",
    )
    counts = [len(own) for own in members.values()]
    return Section(
        "Fig 9: mean and longest response of a problem",
        f"{len(members)} recorded problems with {min(counts)} to {max(counts)} responses each; the paper's points are "
        "over 90 epochs.",
        [
            Line("means", "{} to {}".format(*nine["mean_range"]), "", f"{means.min():.0f} to {means.max():.0f}"),
            Line(
                "longest", f"many at the cap, {nine['cap']}", "", f"{longest.min():.0f} to {longest.max():.0f}, no cap"
            ),
            Line(
                "longest over mean: least, median, most",
                replay=f"{ratio.min():.2f}, {np.median(ratio):.2f}, {ratio.max():.2f}",
            ),
            Line("correlation of the two", replay=f"{np.corrcoef(means, longest)[0, 1]:.2f}"),
        ],
        "Fewer problems, fewer responses of each, other policies, none cut at a cap. Here the longest follows the "
        "mean, at 1.3 to 3 times of it; in the paper even problems with means below 1k meet the cap once in 90 "
        "epochs, which 32 to 110 responses do not show.",
        [drawn],
    )


def structures(at: Setting) -> Section:
    """Fig 5: suffix tree against suffix array."""
    five = at.published["das_fig5"]["data"]
    lines = []
    for tokens in CORPORA:
        place = five["corpus_tokens"].index(tokens)
        query = five["speculate"]["suffix_tree"][place]
        tree, array = (five["insert_100_tokens"][kind][place] for kind in ("suffix_tree", "suffix_array"))
        own = against_array(tokens)
        lines += [
            Line(f"{tokens:,} tokens: a query, tree, ms", f"{query}", "", f"{own['query_ms']:.3f}"),
            Line(
                f"{tokens:,} tokens: inserting 100 tokens, tree / array, ms",
                f"{tree:.2f} / {array:,}",
                "",
                f"{own['insert_100_ms']:.2f} / {own['array_sort_ms']:.0f}",
            ),
        ]
    return Section(
        "Fig 5: suffix tree against suffix array",
        "This machine's times, one core, generated text. Tree: the drafter's index, a draft of up to 16 tokens. Array: "
        "sorted anew by prefix doubling in NumPy; queries of it were not timed.",
        lines,
        "Inserting is cheap in both trees and does not depend on the corpus. The array is sorted anew in NumPy "
        "here, which is far faster than what the paper timed, and still tens to thousands of times the tree's. "
        "The query is faster than the paper's and hardly grows: the index follows its matches instead of walking "
        "from the root.",
    )
