"""NeMo RL: compares four draft heads. A head was first trained on in-domain or on general data, and is then frozen or
trained online."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Section, Table
from analysis.sections.drafting import FROZEN, ONLINE, head_arm, named, speedup, tokens_per_pass
from analysis.sections.nemo_rl_main import drafters
from analysis.sections.shared import policy_note, rows, total
from analysis.sections.time_and_reward import same_training

HEADS = {  # label -> the arm, and the paper's row
    "in-domain, frozen": (head_arm("in_domain", FROZEN), "EAGLE-3 k=3, DAPO init, offline"),
    "in-domain, online": (head_arm("in_domain", ONLINE), "EAGLE-3 k=3, DAPO init, online"),
    "general, frozen": (head_arm("general", FROZEN), "EAGLE-3 k=3, UltraChat/Magpie init, offline"),
    "general, online": (head_arm("general", ONLINE), "EAGLE-3 k=3, UltraChat/Magpie init, online"),
}
NO_HELP = 0.02  # a smaller relative gain counts as none; in the paper, online training costs the in-domain head 1 %


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare the tokens per pass and the speed-ups that four heads reach with drafts of k = 3 tokens, also step by
    step."""
    (run,) = runs.values()
    paper = drafters(published)
    alpha = {label: tokens_per_pass(rows(run, arm)) for label, (arm, _) in HEADS.items()}
    colour = colours_of(list(HEADS))
    with figure(folder / "heads.png") as axes:
        for label, (arm, _) in HEADS.items():
            steps = rows(run, arm)
            axes.plot(
                [r["step"] for r in steps], [r["tokens_per_pass"] for r in steps], color=colour[label], label=label
            )
        axes.set(xlabel="training step", ylabel="tokens per pass", ylim=(1, None), title="Draft heads, k = 3")
        axes.legend()
    cells = []
    for label, (arm, row) in HEADS.items():
        theirs = [paper[row][setting] for setting in ("zero", "think")]
        head_s = sum(r.get("head_train_s", 0.0) for r in rows(run, arm)) / total(rows(run, arm), "step_s")
        cells.append(
            [
                label,
                *(f"{value['acceptance_length']} / {value['speedup']}" for value in theirs),
                f"{alpha[label]:.2f}",
                f"{speedup(run, arm):.2f}",
                f"{head_s:.1%}",
            ]
        )
    gain = {warm: alpha[f"{warm}, online"] / alpha[f"{warm}, frozen"] - 1 for warm in ("in-domain", "general")}
    return Section(
        title,
        f"{policy_note(run)} In-domain: the head first learns from responses to other puzzles; general: "
        "to sums of several steps.",
        table=Table(
            [
                "head",
                "paper, Zero: tokens per pass / speed-up",
                "paper, Think",
                "ours: tokens per pass",
                "generation, times as fast",
                "head training, share of a step",
            ],
            cells,
        ),
        differs="The general head reads text that is further from the run's than chat is from maths. "
        "In 8 steps online training makes up a part of the difference (docs/log.md#eagle-3-heads-2026-11-23 has 16).",
        figures=["heads.png"],
        orderings=[
            *(
                Ordering(
                    f"an in-domain head beats a general one, {how}",
                    alpha[f"in-domain, {how}"] > alpha[f"general, {how}"],
                    named({warm: alpha[f"{warm}, {how}"] for warm in ("in-domain", "general")}),
                )
                for how in ("frozen", "online")
            ),
            Ordering("online training helps the general head", gain["general"] > 0, f"{gain['general']:+.1%}"),
            Ordering(
                f"it does not help the in-domain head (less than {NO_HELP:.0%})",
                gain["in-domain"] < NO_HELP,
                f"{gain['in-domain']:+.1%}",
            ),
            same_training(run),
        ],
    )
