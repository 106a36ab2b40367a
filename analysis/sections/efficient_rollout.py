"""The tables of the EfficientRollout paper, from runs on the real engine."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from statistics import mean
from typing import Any

import numpy as np

from analysis.figures import colours_of
from analysis.report import Section, Table, by_columns, percent
from analysis.sections.given import BLUE, GREEN, ORANGE, Given, Record, change, listed, named, numbers, per, total

# Row of the main table: label of the run, arm, the paper's method, and its key in published er_replay.
METHODS = {
    "self-draft, always on": ("self_drafts", "self_draft", "w4_always_on", "always"),
    "self-draft, toggle": ("self_drafts", "self_draft_toggle", None, None),
    "self-draft, toggle and ladder": ("self_drafts", "self_draft_adaptive", "full", "toggle"),
    "EAGLE-3, frozen": ("heads", "warm_in_domain-online_false", None, None),
    "EAGLE-3, online": ("heads", "warm_in_domain-online_true", "eagle3", None),
}
MODELS = {"Qwen2.5-7B": 7, "Qwen2.5-14B": 5, "Llama-3.1-8B-Instruct": 5}  # model -> draft length in the replay
POLICIES = {"always": "self_draft", "toggle": "self_draft_toggle", "adaptive": "self_draft_adaptive"}
COPIES = {"w8": "W8", "w4": "W4", "eagle3": "EAGLE-3"}
OLDER = ", older"  # what the names of drafters end in that were made from the policy before
EAGLE_TAU = "2.1 / - / - (7B, main table)"
GAMMAS = ("3", "5", "7")


def efficient_rollout_main(given: Given) -> Section:
    """Self-drafts always on, with the toggle, with toggle and ladder; beside EAGLE-3."""
    runs = given.runs
    arms = {name: (runs[label], arm) for name, (label, arm, _, _) in METHODS.items()}
    steps = {name: run[arm] for name, (run, arm) in arms.items()}
    rollout, step = (
        {name: 1 / run.speedup(arm, key) for name, (run, arm) in arms.items()} for key in ("rollout_s", "step_s")
    )
    alpha = {name: per(rows, "accepted", "drafted") for name, rows in steps.items()}
    always, toggled, full = (rollout[name] for name in list(METHODS)[:3])
    alphas = {"self-draft": alpha["self-draft, always on"], "EAGLE-3": alpha["EAGLE-3, online"]}
    paper = {(row["model"], row["method"]): row for row in given.paper("er_main")["rows"]}
    replayed = {(row["model"], row["gamma"]): row for row in given.paper("er_replay")["no_overhead_6_steps"]}
    ratios = {live_of(runs[label]): runs[label].result["ratio_to_none"] for label in ("few", "many")}
    live = {
        n: {policy: of[arm]["rollout_s"]["overall"] for policy, arm in POLICIES.items()} for n, of in ratios.items()
    }
    fewest, most = live[min(live)], live[max(live)]
    _draw_main(given, rollout, live)

    def claimed(method: str) -> str:
        return " / ".join(format(paper[model, method]["rollout_change_pct"], "+.1f") for model in MODELS)

    def row(name: str) -> list[str]:
        rows = steps[name]
        # Seconds a step: of copying weights in few bits if the arm does so, and of training a head.
        prepared = [each for each in rows if "requantize_s" in each] or rows
        preparation = mean(each.get("requantize_s", 0.0) + each.get("head_train_s", 0.0) for each in prepared)
        tau = numbers([1 + per(rows, "accepted", "draft_rounds"), per(rows, "drafted", "draft_rounds")])
        accepted = f"{alpha[name]:.1%}" if total(rows, "drafted") else "-"
        tokens = f"{per(rows, 'tokens', 'passes'):.2f}"
        return [name, f"{preparation:.3f}", tau, accepted, tokens, change(rollout[name]), change(step[name])]

    def paper_row(method: str) -> list[str]:
        its = paper["Qwen2.5-7B", method]
        head = [f"paper, Qwen2.5-7B: {method}", f"{its['prep_s']}", f"{its['tau']} / {its['gamma_mean']}"]
        changes = [f"{its[key]:+.1f} %" for key in ("rollout_change_pct", "step_change_pct")]
        return [*head, f"{its['alpha_pct']} %", "", *changes]

    for name, (_, _, method, key) in METHODS.items():
        if method:
            given.line(
                f"{name}: change of rollout time, % (7B / 14B / Llama)",
                claimed=claimed(method),
                replay=" / ".join(format(replayed[case][key], "+.1f") for case in MODELS.items() if key),
                engine=change(rollout[name]),
            )
    for n, of_live in live.items():
        what = f"30 million random weights, {n} live: always on / toggle / toggle and ladder"
        given.line(what, engine=" / ".join(map(change, of_live.values())))
    given.claim(
        "self-drafts, always on, make rollouts shorter",
        always < 1,
        change(always),
        (-paper["Qwen2.5-7B", "w4_always_on"]["rollout_change_pct"], 100 * (1 - always), " % less"),
    )
    given.claim("with the toggle no longer than always on", toggled <= always, f"{change(toggled)}, {change(always)}")
    given.claim(
        "toggle and ladder make rollouts shorter",
        full < 1,
        change(full),
        (-paper["Qwen2.5-7B", "full"]["rollout_change_pct"], 100 * (1 - full), " % less"),
    )
    # A ratio of times up to 1.03 may be noise of the machine.
    given.claim("the toggle costs at most 3 %", toggled <= 1.03, change(toggled))
    given.claim(
        "self-drafts are accepted more often than EAGLE-3's",
        alphas["self-draft"] > alphas["EAGLE-3"],
        named(alphas, "{} {:.3f}"),
    )
    given.claim(
        f"30 million, {min(live)} live: self-drafts make rollouts shorter",
        fewest["always"] < 1,
        change(fewest["always"]),
    )
    given.claim(
        f"30 million, {max(live)} live: no longer with the toggle than always on",
        most["toggle"] <= most["always"],
        f"{change(most['toggle'])}, {change(most['always'])}",
    )
    given.claim(
        "training is the same with every drafter",
        all(run.identical for run in runs.values()),
        "; ".join(dict.fromkeys(run.identity for run in runs.values())),
    )
    return given.section(
        f"{runs['self_drafts'].note} EAGLE-3 drafts 3, self-drafts 7, the ladder 5 to 11 tokens. "
        "30 million: random weights, no training; with most live requests, the ends of "
        "responses come at random.",
        "A draft pass saves the reading of weights. The small policy (1.9 million parameters) is too small for "
        "that: a draft pass takes about as long as a pass, so drafts change its time little. With 30 million "
        "parameters drafts pay at 2 live requests; at 96, where 4 bits take longer than full weights, they lose, and "
        "the toggle leaves them off. The replay leaves out what a cycle costs on the host. "
        "Changes of the small policy are medians over steps.",
        table=Table(
            ["", "preparation, s a step", "tau / gamma", "accepted", "tokens per pass", "rollout", "step"],
            [*map(row, steps), *map(paper_row, ("w4_always_on", "full", "eagle3"))],
        ),
    )


def _draw_main(given: Given, rollout: Mapping[str, float], live: Mapping[int, Mapping[str, float]]) -> None:
    with given.picture("main.png", 2) as (left, right):
        left.barh(list(rollout)[::-1], list(rollout.values())[::-1], color=BLUE)
        left.axvline(1, color="black", linewidth=1)
        left.set(title="Small policy, 1.9 million", xlabel="rollout time / none")
        for policy, color in zip(POLICIES, (BLUE, ORANGE, GREEN), strict=True):
            right.plot(list(map(str, live)), [of[policy] for of in live.values()], "o-", label=policy, color=color)
        right.axhline(1, color="black", linewidth=1)
        right.set(title="30 million random weights", xlabel="live requests", ylabel="rollout time / none")
        right.set(ylim=(0, None))


def efficient_rollout_toggle(given: Given) -> Section:
    """The toggle is off while many requests are live, and on for the tail; the ladder's drafts get longer."""
    few, many = given.runs["few"], given.runs["many"]
    often, widest = given.paper("er_adaptive")["toggle_keeps_sd_off_for_pct_of_decoding_steps"], live_of(many)
    rollouts = traces(many, "self_draft_toggle")
    switched, stayed = [switch(trace) for trace in rollouts], [stays_on(trace) for trace in rollouts]
    lengths = {live_of(run): ladder(run) for run in (few, many)}
    accepted = {live_of(run): accepted_shares(run) for run in (few, many)}
    # The last rollout is shown, because in the first one the rule knows neither times of passes nor tau.
    shown, later = rollouts[-1], switched[1:]
    drafts = drafting(shown)
    passes, colors = np.arange(len(drafts)), colours_of([f"live_{live}" for live in lengths])
    with given.picture("toggle.png", 3) as (live_axes, speed_axes, ladder_axes):
        live_axes.step(passes, shown["step_live"], where="post", color="black", label="live requests")
        top = max(shown["step_live"])
        live_axes.fill_between(passes, 0, y2=top, where=drafts, color=BLUE, alpha=0.2, label="drafting")
        live_axes.set(title="Toggle over a rollout", xlabel="pass", ylabel="live requests", ylim=(0, None))
        speed_axes.plot(shown["pass_speedup"], ".-", color=BLUE, markersize=3)
        speed_axes.axhline(1.05, color="black", linewidth=1, linestyle="--")  # the paper's: it is on from here
        speed_axes.set(title="What the toggle predicts", xlabel="pass", ylabel="predicted speedup")
        speed_axes.set(xlim=(0, len(drafts)))
        for live, values in lengths.items():
            color = colors[f"live_{live}"]
            ladder_axes.step(range(1, len(values) + 1), values, where="mid", color=color, label=f"{live} live")
        ladder_axes.set(title="Ladder", xlabel="rollout", ylabel="draft length", ylim=(0, 12))
    begins = listed(["never" if point is None else point[1] for point in later])
    given.line(
        "share of passes before drafting begins, by rollout",
        claimed=f"{often[0]} to {often[1]} %",
        engine=listed(["never on" if point is None else percent(point[0]) for point in switched]),
    )
    given.line(
        "live requests when it begins",
        replay="37 to 42",
        engine=listed(["-" if point is None else point[1] for point in switched]),
    )
    for live in lengths:
        given.line(
            f"ladder, {live} live: draft length by rollout; accepted share",
            claimed="7B: 5, 7, 9, 11",
            engine=f"{listed(lengths[live])}; {listed(accepted[live], '{:.2f}')}",
        )
    given.claim(
        "the toggle is off while all requests are live, and on in the tail",
        all(point is not None and point[1] < widest for point in later) if later else None,
        f"live requests when it begins, from the second rollout on: {begins}",
    )
    given.claim("once on, it stays on", all(stayed), f"in {sum(stayed)} of {len(stayed)}")
    given.claim(
        "the ladder climbs where at least 94 % were accepted in two rollouts, and nowhere else",
        all(follows_rule(lengths[live], accepted[live]) for live in lengths),
        "; ".join(f"{live} live: {listed(lengths[live])}" for live in lengths),
    )
    return given.section(
        f"30 million random weights; rollouts of {widest} requests, whose ends come at random. The toggle's times come "
        "from the engine's own passes and draft passes. The picture shows the last rollout."
    )


def efficient_rollout_weights(given: Given) -> Section:
    """W4, W8 and EAGLE-3, teacher-forced: what each would have drafted."""
    counts, paper = given.runs["counts"], given.paper("er_w4_w8")["tau"]
    found, colors = counts.result["drafters"], colours_of(list(COPIES))

    def taus(drafter: str, kind: str = "tau") -> list[float]:
        return [found[drafter][kind][k] for k in GAMMAS]

    tau = {name: taus(key) for key, name in COPIES.items()}
    gap = {name: found[key]["coupled"] - found[key + OLDER]["coupled"] for key, name in COPIES.items()}
    with given.picture("acceptance.png") as axes:
        for (key, name), (age, form) in product(COPIES.items(), (("", "-"), (OLDER, ":"))):
            of_length = found[key + age]["tau"]
            label = name + age
            axes.plot(list(map(int, of_length)), list(of_length.values()), form, color=colors[key], label=label)
        axes.set(title="Acceptance by draft length", xlabel="drafted tokens", ylabel="tokens per pass", ylim=(1, None))
    copies = f"W8 {numbers(tau['W8'])}, W4 {numbers(tau['W4'])}"
    given.claim(
        "W8 drafts better than W4 at every length",
        all(eight > four for eight, four in zip(tau["W8"], tau["W4"], strict=True)),
        copies,
    )
    given.claim(
        "W4 drafts better than EAGLE-3 at 3 tokens",
        tau["W4"][0] > tau["EAGLE-3"][0],
        named({name: tau[name][0] for name in ("W4", "EAGLE-3")}),
    )
    given.claim(
        "tau of copies rises with the draft length",
        all(a < b for name in ("W8", "W4") for a, b in pairwise(tau[name])),
        copies,
    )
    given.claim("fresh drafts are accepted more often than older ones", min(gap.values()) > 0, named(gap, "{} {:.4f}"))
    return given.section(
        f"{counts.result['positions']} positions of the small policy's responses after an epoch of training, T = "
        f"{counts.config['trainer']['temperature']:g}. A draft begins at every place; no engine runs. EAGLE-3 unrolled "
        "3 tokens. Older: made from the policy before that epoch; for EAGLE-3 that is the frozen head, and the fresh "
        "one learned online.",
        "The paper's learning rate is 5e-7, ours 5e-5, so an epoch makes more of a difference.",
        table=by_columns(
            {
                "tau at gamma 3 / 5 / 7": list(COPIES.values()),
                "paper, 7B": [numbers(paper[name]) if name in paper else EAGLE_TAU for name in COPIES.values()],
                "ours, coupled": [numbers(tau[name]) for name in COPIES.values()],
                "ours, likeliest tokens": [numbers(taus(key, "tau_likeliest")) for key in COPIES],
                "coupled: accepted": [f"{found[key]['coupled']:.4f}" for key in COPIES],
                "1 - TV": [f"{found[key]['one_minus_tv']:.4f}" for key in COPIES],
            }
        ),
        more_tables=[
            by_columns(
                {
                    "freshness": list(COPIES.values()),
                    "accepted, fresh": [f"{found[key]['coupled']:.4f}" for key in COPIES],
                    "accepted, older": [f"{found[key + OLDER]['coupled']:.4f}" for key in COPIES],
                    "tau at 3 / 5 / 7, fresh": [numbers(tau[name]) for name in COPIES.values()],
                    "tau at 3 / 5 / 7, older": [numbers(taus(key + OLDER)) for key in COPIES],
                }
            )
        ],
    )


LADDER = "self_draft_adaptive"  # the arm with the ladder
Trace = dict[str, Any]


def live_of(run: Record) -> int:
    """Return the number of responses in a step."""
    return int(run.config["trainer"]["per_device_train_batch_size"])


def traces(run: Record, arm: str) -> list[Trace]:
    """Return the timeline of each rollout of an arm."""
    return [run.timeline(arm, row["step"]) for row in run[arm]]


def drafting(trace: Trace) -> np.ndarray:
    """Return for each pass whether most of three passes (itself and its neighbours) verified a draft; bool [passes].

    This ignores a single pass with drafts while the toggle is off (a trial), and one without drafts while it is on.
    """
    has_drafts = np.pad(np.array(trace["step_tokens"]) > np.array(trace["step_live"]), 1, mode="edge").astype(int)
    return np.asarray(has_drafts[:-2] + has_drafts[1:-1] + has_drafts[2:] >= 2)


def switch(trace: Trace) -> tuple[float, int] | None:
    """Return the share of passes before drafting begins, and the live requests then; None if drafting never begins."""
    on = drafting(trace)
    first = int(on.argmax())
    return (first / len(on), int(trace["step_live"][first])) if on.any() else None


def stays_on(trace: Trace) -> bool:
    """Return whether drafting, once begun, continues to the end of the rollout.

    Up to 5 % of the passes may have no drafts, because a request with one token left needs none.
    """
    on = drafting(trace)
    behind = on[int(on.argmax()) :]
    return bool(not on.any() or np.count_nonzero(~behind) <= len(on) * 0.05)


def ladder(run: Record) -> list[int]:
    """Return the ladder's draft length (its rung) in each rollout; 0 without drafts."""
    lengths = []
    for trace in traces(run, LADDER):
        live, tokens = np.array(trace["step_live"]), np.array(trace["step_tokens"])
        lengths.append(int(np.ceil(((tokens - live) / np.maximum(live, 1)).max(initial=0))))
    return lengths


def accepted_shares(run: Record) -> list[float]:
    """Return accepted / drafted tokens of each rollout with the ladder; nan without drafts."""
    return [row["accepted"] / row["drafted"] if row["drafted"] else float("nan") for row in run[LADDER]]


def follows_rule(lengths: Sequence[int], accepted: Sequence[float], up: float = 0.94) -> bool:
    """Return whether the ladder moved up exactly when two rollouts in a row on a rung had accepted a share `up` or
    more. Rollouts without drafts, in which the toggle stayed off, leave it where it is."""
    drafted = [(length, share) for length, share in zip(lengths, accepted, strict=True) if length]
    lengths, accepted = [length for length, _ in drafted], [share for _, share in drafted]
    since = 0  # rollouts on this rung (with this draft length)
    for i in range(1, len(lengths)):
        since += 1
        climbed = lengths[i] > lengths[i - 1]
        may = since >= 2 and min(accepted[i - 1], accepted[i - 2]) >= up and lengths[i - 1] < 11
        if climbed != may:
            return False
        since = 0 if climbed else since
    return True
