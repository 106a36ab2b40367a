"""NeMo RL, draft length k: with longer drafts the tokens per pass rise, and the speed falls."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Section, Table
from analysis.sections.drafting import named, speedup, tokens_per_pass
from analysis.sections.nemo_rl_main import drafters
from analysis.sections.shared import arm_names, policy_note, rows
from analysis.sections.time_and_reward import same_training

PAPER = {3: "EAGLE-3 k=3, DAPO init, offline", 5: "EAGLE-3 k=5", 7: "EAGLE-3 k=7"}  # k -> its row


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare tokens per pass, speed of generation, and the cost of a cycle (drafting and verifying) by draft length k.
    All arms use the same head, which is not trained further."""
    (run,) = runs.values()
    paper = drafters(published)
    lengths = [int(name.removeprefix("tokens_")) for name in arm_names(run)[1:]]
    alpha = {k: tokens_per_pass(rows(run, f"tokens_{k}")) for k in lengths}
    faster = {k: speedup(run, f"tokens_{k}") for k in lengths}
    with figure(folder / "depth.png", panels=2) as (tokens, speed):
        tokens.plot(lengths, [alpha[k] for k in lengths], "o-", color="#0072B2", label="ours")
        speed.plot(lengths, [faster[k] for k in lengths], "o-", color="#0072B2", label="ours")
        for setting, colour in (("zero", "#E69F00"), ("think", "#009E73")):
            of_paper = [paper[row][setting] for row in PAPER.values()]
            tokens.plot(
                list(PAPER), [p["acceptance_length"] for p in of_paper], "s--", color=colour, label=f"paper, {setting}"
            )
            speed.plot(list(PAPER), [p["speedup"] for p in of_paper], "s--", color=colour, label=f"paper, {setting}")
        tokens.set(
            xlabel="k, drafted tokens", ylabel="tokens per pass", ylim=(1, None), title="Acceptance by draft length"
        )
        speed.set(xlabel="k, drafted tokens", ylabel="generation, times as fast", ylim=(0, None), title="Speed")
        tokens.legend()
    cells = []
    for k in lengths:
        theirs = [paper[PAPER[k]][setting] if k in PAPER else None for setting in ("zero", "think")]
        cells.append(
            [
                str(k),
                *(
                    "" if p is None else f"{p['acceptance_length']} / {p['speedup']} / {p['cycle_cost']}"
                    for p in theirs
                ),
                f"{alpha[k]:.2f} / {faster[k]:.2f} / {alpha[k] / faster[k]:.2f}",
            ]
        )
    long = [k for k in lengths if k >= min(PAPER)]
    return Section(
        title,
        f"{policy_note(run)} One head, whose loss unrolls 7 tokens. Cycle cost: in plain passes.",
        table=Table(["k", "paper, Zero: tokens per pass / times as fast / cycle cost", "paper, Think", "ours"], cells),
        differs="A pass of the head takes a good part of a pass of this small policy, so no k gains, and the cycle "
        "cost rises as steeply as the paper's measured 8B.",
        figures=["depth.png"],
        orderings=[
            Ordering(
                "tokens per pass rise with k",
                all(alpha[a] < alpha[b] for a, b in pairwise(lengths)),
                named({f"k={k}": alpha[k] for k in lengths}),
            ),
            Ordering(
                "from k = 3 on, speed falls with k",
                all(faster[a] > faster[b] for a, b in pairwise(long)) if len(long) > 1 else None,
                named({f"k={k}": faster[k] for k in lengths}),
            ),
            Ordering(
                "k = 3 gains", faster[3] > 1 if 3 in faster else None, named({f"k={k}": faster[k] for k in lengths})
            ),
            same_training(run),
        ],
    )
