"""NeMo RL, step times: the times of the parts of a training step, of which drafts shorten one, the rollout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Line, Section, Table
from analysis.sections.drafting import FROZEN, ONLINE, head_arm, speedup, tokens_per_pass
from analysis.sections.shared import Rows, percent, policy_note, rows, total
from analysis.sections.time_and_reward import same_training

ARMS = {
    "none": "none",
    "ngram": "ngram",
    "EAGLE-3, frozen": head_arm("in_domain", FROZEN),
    "EAGLE-3, online": head_arm("in_domain", ONLINE),
}
OURS = ("generation", "weight sync", "log-probs, rewards, training", "head training")
SAME = 0.1  # a relative change up to this counts as none, for the rest of a step


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare the seconds of a step's parts, tokens per pass and speed-ups, with drafts of k = 3 tokens. The paper
    measured an 8B model on 32 GPUs."""
    (run,) = runs.values()
    paper = published["nemo_step"]["data"]
    parts = {label: step_parts(rows(run, arm)) for label, arm in ARMS.items()}
    faster = {label: speedup(run, arm) for label, arm in ARMS.items() if arm != "none"}
    share = parts["none"]["generation"] / sum(parts["none"].values())
    draw(parts, folder / "step_parts.png")
    ours = Table(
        ["ours, s a step", *ARMS],
        [
            *([part, *(f"{parts[label][part]:.2f}" for label in ARMS)] for part in OURS),
            ["whole step", *(f"{sum(parts[label].values()):.2f}" for label in ARMS)],
            ["tokens per pass", *(f"{tokens_per_pass(rows(run, arm)):.2f}" for arm in ARMS.values())],
            ["generation, times as fast", "1", *(f"{value:.2f}" for value in faster.values())],
            ["step, times as fast", "1", *(f"{speedup(run, a, 'step_s'):.2f}" for a in ARMS.values() if a != "none")],
        ],
    )
    columns = ("think_ar", "think_sd", "zero_ar", "zero_sd")
    theirs = Table(
        ["paper, s a step", "Think", "Think, EAGLE-3", "Zero", "Zero, EAGLE-3"],
        [[part, *(f"{paper[column][i]:g}" for column in columns)] for i, part in enumerate(paper["rows"])],
    )
    frozen = "EAGLE-3, frozen"
    ngram = {setting: row["speedup"] for setting, row in drafters(published)["n-gram"].items()}
    rest = {label: sum(parts[label].values()) - parts[label]["generation"] for label in ("none", frozen)}
    bound = 1 / (1 - share + share / faster[frozen])
    return Section(
        title,
        f"{policy_note(run)} TRL computes log-probs, rewards and the update in one call, so they are one part here. "
        "Speeds are medians over steps, seconds are means.",
        [
            Line("share of generation in a step of none", "72.1 %, 66.1 %", "", "", percent(share)),
            Line("EAGLE-3: generation, times as fast", "1.54, 1.77", "", "", f"{faster[frozen]:.2f}"),
            Line("step, times as fast", "1.35, 1.41", "", "", f"{speedup(run, ARMS[frozen], 'step_s'):.2f}"),
            Line("the same, by generation alone (Amdahl)", "1.34, 1.40", "", "", f"{bound:.2f}"),
            Line("n-gram: generation, times as fast", "0.5, 0.7", "", "", f"{faster['ngram']:.2f}"),
        ],
        "The policy has 1.9 million parameters. On this CPU a pass of the one-layer head takes a good part of "
        "the policy's, so three of them eat what they save. Prompt lookup costs no pass, so it gains where the paper's "
        "loses. This policy takes half of a step for training, so a step gains little.",
        ["step_parts.png"],
        ours,
        [
            Ordering(
                "EAGLE-3 makes generation faster",
                faster[frozen] > 1,
                f"{faster[frozen]:.2f} times as fast; paper 1.54, 1.77",
                (1.54 + 1.77) / 2,
                faster[frozen],
                " times as fast",
            ),
            Ordering(
                "online training of the head leaves a gain",
                faster["EAGLE-3, online"] > 1,
                f"generation {faster['EAGLE-3, online']:.2f} times as fast",
            ),
            Ordering(
                f"the rest of a step takes as long as before, within {percent(SAME)}",
                abs(rest[frozen] / rest["none"] - 1) < SAME,
                f"{rest['none']:.2f} s without drafts, {rest[frozen]:.2f} s with EAGLE-3",
            ),
            Ordering(
                "prompt lookup makes generation slower",
                faster["ngram"] < 1,
                f"{faster['ngram']:.2f} times as fast; paper {ngram['think']}, {ngram['zero']}",
                (ngram["think"] + ngram["zero"]) / 2,
                faster["ngram"],
                " times as fast",
            ),
            same_training(run),
        ],
        [theirs],
    )


def drafters(published: Mapping[str, Any]) -> dict[str, Any]:
    """Return drafter -> its row of the paper's table."""
    return {
        row["drafter"]: {key: row[key] for key in ("think", "zero")}
        for row in published["nemo_drafters"]["data"]["rows"]
    }


def step_parts(steps: Rows) -> dict[str, float]:
    """Return part of a step -> its mean seconds. OURS names the parts."""
    count = len(steps)
    generation, sync = total(steps, "rollout_s") / count, total(steps, "sync_s") / count
    head = sum(row.get("head_train_s", 0.0) for row in steps) / count
    return dict(
        zip(OURS, (generation, sync, total(steps, "step_s") / count - generation - sync - head, head), strict=True)
    )


def draw(parts: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw the parts as stacked bars, one bar for each arm."""
    with figure(path) as axes:
        below = [0.0] * len(parts)
        for part, colour in zip(OURS, ("#0072B2", "#8C8C8C", "#56B4E9", "#E69F00"), strict=True):
            heights = [of_arm[part] for of_arm in parts.values()]
            axes.bar(list(parts), heights, bottom=below, label=part, color=colour)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.set(ylabel="s a step", title="Parts of a training step")
        axes.tick_params(axis="x", labelsize=7)
        axes.legend(fontsize=7)
