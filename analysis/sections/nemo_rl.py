"""The tables of the NeMo RL paper (2604.26779), from runs on the real engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import mean
from typing import Any

import numpy as np

from analysis.figures import colours_of
from analysis.report import Section, Table, percent
from analysis.sections.given import BLUE, GREY, ORANGE, Given, Record, Rows, named, per, total


def exposed_times(rollout_s: Sequence[float], train_s: Sequence[float], lag: int) -> list[float]:
    """Return the seconds that the trainer waits for the rollout of each step.

    At the start of step n the trainer submits rollout n + lag; the engine takes rollouts in order, one at a time. The
    last `lag` steps submit nothing. rollout_s, train_s: seconds of each step's rollout and of its training, without the
    other.
    """
    now = engine_free = 0.0
    ends: list[float] = []
    waits = []
    for step, own_train_s in enumerate(train_s):
        while len(ends) <= min(step + lag, len(rollout_s) - 1):
            engine_free = max(engine_free, now) + rollout_s[len(ends)]
            ends.append(engine_free)
        waits.append(max(0.0, ends[step] - now))
        now += waits[-1] + own_train_s
    return waits


def hidden_share(exposed_s: Sequence[float], rollout_s: Sequence[float], train_s: Sequence[float]) -> float:
    """Return how much of the shorter activity (generation or training) ran beside the longer one, as a share from 0 to
    1.

    The first step does not count, because no training runs beside its rollout. exposed_s, rollout_s, train_s: seconds
    by step.
    """
    generation, training = sum(rollout_s[1:]), sum(train_s[:-1])
    return (generation - sum(exposed_s[1:])) / min(generation, training)


@dataclass(frozen=True)
class Times:
    """The times of one arm's steps, in seconds. All means leave out the first step."""

    rollout_s: Sequence[float]
    exposed_s: Sequence[float]
    train_s: Sequence[float]

    @property
    def exposed(self) -> float:
        """The mean seconds that the trainer waited for a rollout."""
        return mean(self.exposed_s[1:])

    @property
    def step(self) -> float:
        return self.exposed + mean(self.train_s[1:])

    @property
    def hidden(self) -> float:
        """How much of the shorter activity (generation or training) ran beside the other one, as a share."""
        return hidden_share(self.exposed_s, self.rollout_s, self.train_s)

    def at_lag(self, lag: int) -> "Times":
        """Return the predicted times of the same work at another lag. The queue of rollouts is simulated. This object
        must hold times at lag 0."""
        return Times(self.exposed_s, exposed_times(self.exposed_s, self.train_s, lag), self.train_s)


def step_times(rows: Rows) -> Times:
    """Return the times of an arm's steps."""
    exposed_s = [row["exposed_s"] for row in rows]
    train_s = [row["step_s"] - exposed for row, exposed in zip(rows, exposed_s, strict=True)]
    return Times([row["rollout_s"] for row in rows], exposed_s, train_s)


SKY, TWO = "#56B4E9", "{:.2f}".format
ARMS = {
    "none": "none",
    "ngram": "ngram",
    "EAGLE-3, frozen": "warm_in_domain-online_false",
    "EAGLE-3, online": "warm_in_domain-online_true",
}
FROZEN = list(ARMS).index("EAGLE-3, frozen")
HEADS = {  # label -> the arm, and the paper's row
    "in-domain, frozen": ("warm_in_domain-online_false", "EAGLE-3 k=3, DAPO init, offline"),
    "in-domain, online": ("warm_in_domain-online_true", "EAGLE-3 k=3, DAPO init, online"),
    "general, frozen": ("warm_general-online_false", "EAGLE-3 k=3, UltraChat/Magpie init, offline"),
    "general, online": ("warm_general-online_true", "EAGLE-3 k=3, UltraChat/Magpie init, online"),
}
LENGTHS = {3: "EAGLE-3 k=3, DAPO init, offline", 5: "EAGLE-3 k=5", 7: "EAGLE-3 k=7"}  # k -> the paper's row
OF_PAPER = {"none": "ar", "das": "sd"}  # arms of the asynchronous training


def _drafters(given: Given) -> dict[str, Any]:
    """Returns drafter -> its row of the paper's table: think, zero."""
    return {row["drafter"]: row for row in given.paper("nemo_drafters")["rows"]}


def nemo_rl_main(given: Given) -> Section:
    """Step times: drafts of an EAGLE-3 head shorten generation alone, and prompt lookup loses time."""
    run, paper, ngram = given.run, given.paper("nemo_step"), _drafters(given)["n-gram"]

    def seconds(key: str) -> list[float]:
        return [sum(row.get(key, 0.0) for row in run[arm]) / len(run[arm]) for arm in ARMS.values()]

    head, generation, sync, step = map(seconds, ("head_train_s", "rollout_s", "sync_s", "step_s"))
    rest = np.subtract(step, generation)
    training = (rest - sync - head).tolist()
    # Part of a step -> its mean seconds by arm.
    parts = {"generation": generation, "weight sync": sync, "log-probs, rewards, training": training}
    parts["head training"] = head
    faster, faster_step = (
        {label: run.speedup(arm, key) for label, arm in ARMS.items() if label != "none"}
        for key in ("rollout_s", "step_s")
    )
    frozen, share = faster["EAGLE-3, frozen"], generation[0] / step[0]
    columns = {"Think": "think_ar", "Think, EAGLE-3": "think_sd", "Zero": "zero_ar", "Zero, EAGLE-3": "zero_sd"}
    with given.picture("step_parts.png") as axes:
        below = np.zeros(len(ARMS))
        for (part, values), color in zip(parts.items(), (BLUE, GREY, SKY, ORANGE), strict=True):
            axes.bar(list(ARMS), values, bottom=below, label=part, color=color)
            below += values
        axes.tick_params(axis="x", labelsize=7)
        axes.set(title="Parts of a training step", ylabel="s a step")
    amdahl = 1 / (1 - share + share / frozen)
    given.line("share of generation in a step of none", "72.1 %, 66.1 %", engine=percent(share))
    given.line("EAGLE-3: generation, times as fast", "1.54, 1.77", engine=f"{frozen:.2f}")
    given.line("step, times as fast", "1.35, 1.41", engine=f"{faster_step['EAGLE-3, frozen']:.2f}")
    given.line("the same, by generation alone (Amdahl)", "1.34, 1.40", engine=f"{amdahl:.2f}")
    given.line("n-gram: generation, times as fast", "0.5, 0.7", engine=f"{faster['ngram']:.2f}")
    given.claim(
        "EAGLE-3 makes generation faster",
        frozen > 1,
        f"{frozen:.2f} times as fast; paper 1.54, 1.77",
        ((1.54 + 1.77) / 2, frozen, " times as fast"),
    )
    given.claim(
        "online training of the head leaves a gain",
        faster["EAGLE-3, online"] > 1,
        f"generation {faster['EAGLE-3, online']:.2f} times as fast",
    )
    given.claim(
        "the rest of a step takes as long as before, within 10.0 %",
        abs(float(rest[FROZEN] / rest[0]) - 1) < 0.1,
        f"{rest[0]:.2f} s without drafts, {rest[FROZEN]:.2f} s with EAGLE-3",
    )
    given.claim(
        "prompt lookup makes generation slower",
        faster["ngram"] < 1,
        f"{faster['ngram']:.2f} times as fast; paper {ngram['think']['speedup']}, {ngram['zero']['speedup']}",
        ((ngram["think"]["speedup"] + ngram["zero"]["speedup"]) / 2, faster["ngram"], " times as fast"),
    )
    given.same_training(run)
    return given.section(
        f"{run.note} TRL computes log-probs, rewards and the update in one call, so they are one part here. Speeds are "
        "medians over steps, seconds are means.",
        "The policy has 1.9 million parameters. On this CPU a pass of the one-layer head takes a good part of the "
        "policy's, so three of them eat what they save. Prompt lookup costs no pass, so it gains where the paper's "
        "loses. This policy takes half of a step for training, so a step gains little.",
        table=Table(
            ["ours, s a step", *ARMS],
            [
                *([part, *map(TWO, values)] for part, values in {**parts, "whole step": step}.items()),
                ["tokens per pass", *(TWO(per(run[arm], "tokens", "passes")) for arm in ARMS.values())],
                ["generation, times as fast", "1", *map(TWO, faster.values())],
                ["step, times as fast", "1", *map(TWO, faster_step.values())],
            ],
        ),
        more_tables=[
            Table(
                ["paper, s a step", *columns],
                [[row, *(f"{paper[of][i]:g}" for of in columns.values())] for i, row in enumerate(paper["rows"])],
            )
        ],
    )


def nemo_rl_heads(given: Given) -> Section:
    """What a draft head starts from: in-domain beats general; online training helps the general head alone. How many
    tokens it drafts: with more, tokens per pass rise and the speed-up falls."""
    run, depth, paper = given.runs["heads"], given.runs["depth"], _drafters(given)
    lengths = [int(arm.removeprefix("tokens_")) for arm in depth.arms[1:]]
    arms: dict[str, tuple[Record, str, str | None]] = {label: (run, *of) for label, of in HEADS.items()}
    arms |= {f"k = {k}": (depth, f"tokens_{k}", LENGTHS.get(k)) for k in lengths}
    alpha = {label: per(run[arm], "tokens", "passes") for label, (run, arm, _) in arms.items()}
    faster = {label: run.speedup(arm) for label, (run, arm, _) in arms.items()}
    gain = {warm: alpha[f"{warm}, online"] / alpha[f"{warm}, frozen"] - 1 for warm in ("in-domain", "general")}
    colors = colours_of(list(HEADS))
    with given.picture("heads.png") as axes:
        for label, (arm, _) in HEADS.items():
            given.plot_steps(axes, run[arm], "tokens_per_pass", color=colors[label], label=label)
        axes.set(title="Draft heads, k = 3", xlabel="training step", ylabel="tokens per pass", ylim=(1, None))

    def row(label: str, run: Record, arm: str, key: str | None) -> list[str]:
        of = [paper[key][of] for of in ("zero", "think")] if key else []
        theirs = [f"{each['acceptance_length']} / {each['speedup']}" for each in of] or ["", ""]
        training = sum(row.get("head_train_s", 0.0) for row in run[arm]) / total(run[arm], "step_s")
        return [label, *theirs, TWO(alpha[label]), TWO(faster[label]), f"{training:.1%}"]

    of_length, speeds = [{k: found[f"k = {k}"] for k in lengths} for found in (alpha, faster)]
    rising = all(of_length[a] < of_length[b] for a, b in pairwise(lengths))
    for how in ("frozen", "online"):
        given.claim(
            f"an in-domain head beats a general one, {how}",
            alpha[f"in-domain, {how}"] > alpha[f"general, {how}"],
            named({warm: alpha[f"{warm}, {how}"] for warm in gain}),
        )
    given.claim("online training helps the general head", gain["general"] > 0, f"{gain['general']:+.1%}")
    # A smaller gain counts as none; in the paper, online training costs the in-domain head 1 %.
    given.claim(
        "it does not help the in-domain head (less than 2%)", gain["in-domain"] < 0.02, f"{gain['in-domain']:+.1%}"
    )
    given.claim("tokens per pass rise with k", rising, named(of_length, "k={} {:.2f}"))
    given.claim(
        "from k = 3 on, speed falls with k",
        all(speeds[a] > speeds[b] for a, b in pairwise(lengths)) if len(lengths) > 1 else None,
        named(speeds, "k={} {:.2f}"),
    )
    given.claim("k = 3 gains", speeds[3] > 1 if 3 in speeds else None, named(speeds, "k={} {:.2f}"))
    for each in (run, depth):
        given.same_training(each)
    return given.section(
        f"{run.note} In-domain: the head first learns from responses to other puzzles; general: to sums of several "
        "steps. k: one in-domain, frozen head, whose loss unrolls 7 tokens.",
        "The general head reads text that is further from the run's than chat is from maths. In 8 steps online "
        "training makes up a part of the difference (docs/log.md#eagle-3-heads-2026-11-23 has 16). A pass of the head "
        "takes a good part of a pass of this small policy, so no k gains.",
        table=Table(
            [
                *("head", "paper, Zero: tokens per pass / speed-up", "paper, Think", "ours: tokens per pass"),
                *("generation, times as fast", "head training, share of a step"),
            ],
            [row(label, *of) for label, of in arms.items()],
        ),
    )


def nemo_rl_async(given: Given) -> Section:
    """At a lag of 1 or more, what is left of generation in a step is what training does not hide."""
    paper, lags = given.paper("nemo_async"), {int(label.removeprefix("lag_")): run for label, run in given.runs.items()}
    times = {(lag, arm): step_times(run[arm]) for lag, run in lags.items() for arm in OF_PAPER}
    predicted = {(lag, arm): times[0, arm].at_lag(lag) for lag, arm in times}
    none, das, same = times[1, "none"], times[1, "das"], [run.identical for run in lags.values()]
    exposed, colors = paper["exposed_generation_s"], colours_of(["none", "das"])
    with given.picture("async.png", 2) as drawn:
        for axes, (key, label) in zip(
            drawn, {"exposed": "exposed generation, s a step", "step": "time of a step, s"}.items(), strict=True
        ):
            for arm in OF_PAPER:
                values = [getattr(times[lag, arm], key) for lag in sorted(lags)]
                axes.plot(sorted(lags), values, "o-", color=colors[arm], label=arm)
            axes.set(xlabel="lag, training steps", ylabel=label, ylim=(0, None))

    def row(lag: int, arm: str) -> list[str]:
        own, queue = times[lag, arm], predicted[lag, arm]
        seconds = [mean(own.rollout_s[1:]), mean(own.train_s[1:]), own.exposed, queue.exposed, own.step, queue.step]
        return [f"{lag}", arm, *map(TWO, seconds), f"{own.hidden:.0%}"]

    compared = [("exposed generation", "exposed", exposed), ("step", "step", paper["step_s"])]
    for (what, key, theirs), arm in product(compared, OF_PAPER):
        ours = [f"{getattr(of[1, arm], key):.2f} s" for of in (predicted, times)]
        given.line(f"lag 1: {what}, {arm}", f"{theirs[OF_PAPER[arm]]} s", "", *ours)
    ours = [f"{of[1, 'none'].step / of[1, 'das'].step:.2f}x" for of in (predicted, times)]
    given.line("lag 1: step speedup", f"{paper['step_speedup']}x", "", *ours)
    given.claim(
        "drafts change no bit at any lag", all(same), f"{sum(same)} of {len(same)} lags: das is identical to none"
    )
    less = 100 * (1 - das.exposed / none.exposed) if none.exposed else None
    given.claim(
        "lag 1: less generation is exposed with drafts than without",
        das.exposed < none.exposed,
        f"{das.exposed:.2f} s with das, {none.exposed:.2f} s with none",
        (100 * (1 - exposed["sd"] / exposed["ar"]), less, " % less"),
    )
    given.claim(
        "lag 1 hides at least 80% of the shorter of generation and training",
        none.hidden >= 0.8,
        f"none {none.hidden:.0%}, das {das.hidden:.0%}",
    )
    return given.section(
        f"{given.runs['lag_0'].note} The engine has a process and a core of its own; the first step, which has nothing "
        "to hide behind, is left out. Generation and training are measured while the other runs beside them. Replay, "
        "and predicted: by the queue of rollouts alone, from the times of our engine at lag 0.",
        "The paper trains on 4 nodes and generates on 12, an 8B policy with thousands of tokens a response; here it is "
        "a core each, and training takes a larger share of the step.",
        table=Table(
            [
                *("lag", "arm", "generation s", "training s", "exposed s", "predicted", "step s", "predicted"),
                "hidden of the shorter",
            ],
            [row(lag, arm) for lag, arm in times],
        ),
    )
