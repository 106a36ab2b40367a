"""The figures of the DAS paper, from runs on the real engine."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import colours_of
from analysis.report import Section, Table, percent
from analysis.sections.given import BLUE, GREY, Given, Record, arrow

GRAM = 4  # tokens of an n-gram of Fig 2; the paper does not tell its number


def das_fig1(given: Given) -> Section:
    """Live requests over a rollout. The axes are relative, because the paper gives no units."""
    run, paper = given.run, given.paper("das_fig1")
    # The baseline's step with the most passes: its responses are longest.
    step = max(run["none"], key=lambda row: row["decode_steps"])["step"]
    line = {arm: run.timeline(arm, step) for arm in ("none", "das")}
    end = {arm: line[arm]["step_time_s"][-1] for arm in line}
    half = {arm: half_ended(line[arm]) / end["none"] for arm in line}
    plain_s, das_s, colors = paper["end_time"]["verl"], paper["end_time"]["das"], colours_of(["none", "das"])
    with given.picture("live_requests.png") as axes:
        for arm in line:
            live = np.array(line[arm]["step_live"], float)
            seconds = np.array(line[arm]["step_time_s"]) / end["none"]
            axes.step(seconds, live / live[0], where="post", label=arm, color=colors[arm])
        for arm, of, times in (("none", "verl", "time"), ("das", "das", "das_time")):
            share = np.array(paper[of]) / paper["verl"][0]
            axes.plot(np.array(paper[times]) / plain_s, share, ":", label=f"{arm} (paper)", color=colors[arm])
        axes.set(xlabel="time / rollout time of none", ylabel="share of requests that are live", ylim=(0, None))
        axes.set_title("Fig 1: live requests in one rollout")
    ended = "time at which half the requests have ended, none / das"
    given.line("rollout time with DAS / without", f"{das_s / plain_s:.2f}", engine=f"{end['das'] / end['none']:.2f}")
    given.line(ended, "0.31 / 0.26", engine=f"{half['none']:.2f} / {half['das']:.2f}")
    given.claim(
        "the last response ends earlier with DAS",
        end["das"] < end["none"],
        f"after {end['das']:.2f} s with DAS, {end['none']:.2f} s without",
        (100 * (1 - das_s / plain_s), 100 * (1 - end["das"] / end["none"]), " % earlier"),
    )
    given.claim(
        "few requests are live for most of the time",
        half["none"] < 0.5,
        f"half the requests have ended after {half['none']:.0%} of the time",
        (31, 100 * half["none"], " % of the time"),
    )
    return given.section(f"{run.note} Step {step}.")


def half_ended(line: Mapping[str, Any]) -> float:
    """Return the seconds after which at most half of a rollout's requests are live. line: its timeline."""
    live = line["step_live"]
    return float(line["step_time_s"][next((i for i, n in enumerate(live) if n <= 0.5 * live[0]), -1)])


def das_fig2(given: Given) -> Section:
    """Similarity of responses over training."""
    matrix = similarities(given.run, GRAM)
    recent = [float(matrix[epoch, epoch - 1]) for epoch in range(1, len(matrix))]
    near, far = distant(matrix, 1, 1), distant(matrix, max(2, len(matrix) // 2), len(matrix))
    middle = (len(recent) + 1) // 2
    early, late = (float(np.mean(part)) if part else 0.0 for part in (recent[:middle], recent[middle:]))
    measured = arrow([recent[0], recent[-1]]) if recent else ""
    with given.picture("similarity.png", 2) as (left, right):
        left.plot(range(1, len(matrix)), recent, ".-", color=BLUE)
        left.set(xlabel="epoch", ylabel=f"share of {GRAM}-grams seen before", ylim=(0, 1))
        left.set_title("Fig 2 left: similarity to the epoch before")
        shown = right.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
        right.figure.colorbar(shown, label=f"share of {GRAM}-grams in common")
        right.grid(visible=False)
        right.set(title="Fig 2 right: similarity between epochs", xlabel="compared with epoch", ylabel="epoch")
    apart = "similarity of neighbouring epochs / of epochs at least half the run apart"
    papers = "0.61 → 0.80 (Qwen2.5-7B), 0.51 → 0.72 (R1-7B)"
    given.line("similarity to recent history, first → last", papers, engine=measured)
    given.line(apart, "0.5-0.9, high near the diagonal", engine=f"{near:.2f} / {far:.2f}" if far else "")
    given.claim(
        "responses grow more similar to recent ones (second half of the epochs against the first half)",
        late > early if len(recent) > 1 else None,
        measured,
        # The paper's size: the mean of 0.61 to 0.80 and 0.51 to 0.72.
        (0.20, recent[-1] - recent[0] if recent else None, " more"),
    )
    given.claim(
        "neighbouring epochs are more similar than distant ones",
        near > far if far else None,
        f"{near:.2f} for neighbouring epochs, {far:.2f} for distant ones",
    )
    return given.section(
        f"{given.run.note} The measure is the share of the {GRAM}-grams of an epoch's responses that also occur in the "
        "same problem's responses of the epoch before (left) or of any other epoch (right), as a mean over problems. "
        "The paper says neither what n it uses nor how many epochs its recent history spans.",
        "Our policy is trained with a learning rate a hundred times higher, for a tenth of the steps. Its similarity "
        "rises within a few epochs.",
    )


Grams = Mapping[str, set[tuple[int, ...]]]  # problem -> its n-grams


def similarities(run: Record, n: int) -> np.ndarray:
    """Return the similarity of each epoch's responses to those of each other epoch [epochs, epochs]: the share of the
    epoch's n-grams that the other also has, for the same problem, as a mean over problems. They are those of the arm
    without speculation."""
    epochs: dict[int, dict[str, set[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(set))
    for epoch, problem, ids in run.responses("none"):
        epochs[epoch][problem].update(zip(*(ids[i:] for i in range(n)), strict=False))
    return np.array([[similarity(grams, other) for other in epochs.values()] for grams in epochs.values()])


def similarity(grams: Grams, other: Grams) -> float:
    """Return the share of the n-grams in `grams` that are also in `other`, as a mean over the problems in both."""
    common = [problem for problem in grams if problem in other and grams[problem]]
    return float(np.mean([len(grams[p] & other[p]) / len(grams[p]) for p in common])) if common else 0.0


def distant(matrix: np.ndarray, least: int, most: int) -> float:
    """Return the mean similarity of epochs that lie from `least` to `most` epochs apart; 0 if there are none."""
    distance = np.abs(np.subtract.outer(np.arange(len(matrix)), np.arange(len(matrix))))
    found = matrix[(least <= distance) & (distance <= most)]
    return float(found.mean()) if found.size else 0.0


def das_fig5(given: Given) -> Section:
    """The index against a suffix array."""
    paper, measured = given.paper("das_fig5"), given.run.result["array"]
    names, sizes = {"suffix_tree": "index", "suffix_array": "array"}, paper["corpus_tokens"]
    operations = {  # the paper's: in words, and our milliseconds with the index and with the array
        "speculate": ("draft query", "query_ms", "array_query_ms"),
        "insert_100_tokens": ("insertion of 100 tokens", "insert_100_ms", "array_sort_ms"),
    }
    columns = [(of, *own) for of, (_, *keys) in operations.items() for own in zip(names, keys, strict=True)]
    colors, ours = colours_of(["index", "array"]), [row["tokens"] for row in measured]
    with given.picture("tree_and_array.png", 2) as drawn:
        for axes, (of, (title, *keys)) in zip(drawn, operations.items(), strict=True):
            for label, key in zip(names.values(), keys, strict=True):
                axes.plot(ours, [row[key] for row in measured], ".-", color=colors[label], label=label)
            for name, label in names.items():
                axes.plot(sizes, paper[of][name], ":", color=colors[label], label=f"{label} (paper)")
            axes.set(title=f"Fig 5: {title}", xlabel="tokens indexed", ylabel="ms", xscale="log", yscale="log")

    def cell(row: dict[str, float], of: str, name: str, key: str) -> str:
        at = f"{paper[of][name][sizes.index(row['tokens'])]:g} · " if row["tokens"] in sizes else ""
        return f"{at}{row[key]:.3g}"

    speedups = [row["array_query_ms"] / row["query_ms"] for row in measured]
    slowest = max(row["insert_100_ms"] for row in measured)
    given.claim(
        "the growing index answers faster than the array at every size",
        min(speedups) > 1,
        f"{min(speedups):.1f} to {max(speedups):.0f} times faster",
        (paper["derived_speculate_ratio_range"][0], min(speedups), " times as fast, at least"),
    )
    given.claim(
        "inserting 100 tokens takes less than a millisecond at every size",
        slowest < 1,
        f"at most {slowest:.3f} ms",
        (max(paper["insert_100_tokens"]["suffix_tree"]), slowest, " ms at most"),
    )
    return given.section(
        "Milliseconds, paper · ours. The paper's index is a suffix tree; ours is an index of hashed contexts, in C. "
        "The array is searched by bisection and sorted anew for every insertion, in numpy. The languages differ, so "
        "compare orders of magnitude only.",
        table=Table(
            ["tokens", "index, query", "array, query", "index, insert 100", "array, insert 100"],
            [[f"{row['tokens']:,}", *(cell(row, *column) for column in columns)] for row in measured],
        ),
    )


def das_fig8(given: Given) -> Section:
    """Latency of a pass."""
    paper, forms = given.paper("das_fig8"), given.run.result["forms"]
    passes = np.array(read.latency(given.run.folder)["passes"], float)
    tokens, seconds, sizes = passes[:, 1], passes[:, 3], np.unique(passes[:, 1])
    affine, error = forms["affine"]["coefficients"], forms["affine"]["error"]
    best, fit = min(forms, key=lambda name: forms[name]["error"]), paper["fits"][0]
    with given.picture("latency.png", 2) as (left, right):
        left.plot(tokens, 1e3 * seconds, ".", markersize=2, color="#BBBBBB", label="passes")
        medians = [1e3 * np.median(seconds[tokens == size]) for size in sizes]
        left.plot(sizes, medians, ".", color="#000000", label="median")
        left.plot(sizes, 1e3 * (affine["c_base"] + affine["c_tok"] * sizes), color=BLUE, label="affine fit")
        left.set(title="Fig 8: this engine", ylim=(0, 1.2e3 * np.quantile(seconds, 0.999)))
        right.plot(paper["tokens"], paper["latency_ms"], "o-", color=BLUE)
        right.set(title="Fig 8: the paper's, 7B", ylim=(0, None))
        for axes in (left, right):
            axes.set(xlabel="tokens in the pass", ylabel="time of a pass (ms)")
    given.line(
        "fixed time per pass, time per token",
        f"{fit['c_base_ms']} ms, {fit['c_tok_us']} us",
        engine=f"{1e3 * affine['c_base']:.2f} ms, {1e6 * affine['c_tok']:.1f} us",
    )
    given.line("mean relative error of the affine form", claimed="about 12 %", engine=percent(error))
    given.line("the best form here, and its error", engine=f"{best}, {percent(forms[best]['error'])}")
    given.claim(
        "latency is affine in the number of tokens, within the paper's 12 %",
        error <= 0.12,
        f"mean relative error {percent(error)}",
        (12, 100 * error, " % error"),
    )
    return given.section(
        "Every combination of live requests and drafted tokens, timed in the real engine. Errors are measured on "
        "passes that the fit did not see.",
        "On a CPU a live request costs more than a drafted token of the same request. No function of the number of "
        "tokens alone can express that. The form `drafting` counts both, and budgets use it.",
    )


def das_fig9(given: Given) -> Section:
    """The mean and the longest response of each problem, without speculation."""
    run, paper = given.run, given.paper("das_fig9")
    lengths: dict[tuple[int, str], list[int]] = defaultdict(list)  # by epoch and problem
    for epoch, problem, ids in run.responses("none"):
        lengths[epoch, problem].append(len(ids))
    mean_length = np.array([np.mean(group) for group in lengths.values()])
    longest = np.array([max(group) for group in lengths.values()])
    spread, cap = longest / mean_length, run.config["trainer"]["max_completion_length"]
    with given.picture("lengths.png") as axes:
        shown = axes.scatter(mean_length, longest, c=[epoch for epoch, _ in lengths], s=14, cmap="cividis")
        axes.figure.colorbar(shown, label="epoch")
        axes.plot([0, longest.max()], [0, longest.max()], color=GREY, linewidth=0.8)
        axes.set(xlabel="mean length (tokens)", ylabel="longest response (tokens)")
        axes.set_title("Fig 9: response lengths of each problem and epoch")
    least, most = paper["mean_range"]
    ranges = f"{mean_length.min():.0f}-{mean_length.max():.0f} tokens"
    given.line("mean length, range", f"{least}-{most} tokens", engine=ranges)
    given.line("longest / mean length, median and maximum", engine=f"{np.median(spread):.1f}, {spread.max():.1f}")
    at_cap, capped = "many, even for means below 1k of 16k", percent(float(np.mean(longest >= cap)))
    given.line("groups with a response at the length cap", at_cap, engine=capped)
    given.claim(
        "a problem's longest response is far longer than its mean (at least 1.5 times for half of them)",
        bool(np.median(spread) > 1.5),
        f"{np.median(spread):.2f} times as long in the median",
    )
    return given.section(
        f"{run.note} One point for each problem and epoch, {len(lengths)} in all.",
        "Most searches of the small policy end after a few attempts, and a few go on to the length cap.",
    )
