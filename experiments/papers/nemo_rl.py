"""NeMo RL (arXiv 2604.26779), recomputed: the heatmap simulated for a 235B model."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves
from das.files import replacing
from experiments.run.progress import Progress
from experiments.settings.typed import Settings

PREFACE = (
    "The paper's numbers are second-hand (three public summaries that agree). Ours are computed from a model with "
    "three parameters: rollout speedup = alpha / (c0 + c1 k), step speedup = 1 / (1 - R + R / rollout speedup). alpha: "
    "tokens per cycle. k: drafted tokens. R: the rollout's share of the step."
)


def step_speedup(share: float, rollout: float) -> float:
    """Return a step's speedup by Amdahl's law. share: the rollout's share R of the step. rollout: its speedup."""
    return 1 / (1 - share + share / rollout)


def sections(task: Any, budget: Settings, published: dict[str, Any], folder: Path, progress: Progress) -> list[Section]:
    """Recompute the paper's results. Returns all sections of the report; their figures are in `folder`."""
    return [simulated_235b(published, folder)]


def simulated_235b(published: dict[str, Any], folder: Path) -> Section:
    """Make the section of the simulated 235B: predict its speedups with the cost of drafts that the paper assumes, and
    with the cost that it measured for the 8B."""
    model = published["nemo_model"]["data"]
    c0, c1 = model["c0"], model["c1"]
    lines = []
    for point, share, k, alpha in zip(
        published["nemo_simulator"]["data"]["points"],
        (model["R_gen_512"],) * 3 + (model["R_gen_2048"],),
        (3, 7, 7, 5),
        (3, 5, 8, 4),
        strict=True,
    ):
        rollout = alpha / (c0 + c1 * k)
        rollout_at_8b_cost = alpha / (c0 + model["measured_8B_cycle_cost_per_extra_draft_token"]["zero"] * k)
        lines.append(
            Line(
                f"{point['gpus']} GPUs, {point['lag']}, k {k}, alpha {alpha}: rollout / step",
                "",
                f"{point['rollout']} / {point['step']}x",
                f"{rollout:.2f} / {step_speedup(share, rollout):.2f}x; at 8B's measured draft cost "
                f"{rollout_at_8b_cost:.2f} / {step_speedup(share, rollout_at_8b_cost):.2f}x",
            )
        )
    costs = np.linspace(0, 0.8, 41)
    drawn = curves(
        folder / "nemo_cost.png",
        {
            f"{gpus} GPUs, k {k}, alpha {alpha}": (costs, [step_speedup(share, alpha / (c0 + c * k)) for c in costs])
            for gpus, k, alpha, share in ((512, 3, 3, 0.65), (512, 7, 5, 0.65), (2048, 5, 4, 0.84))
        },
        "cost of a drafted token c1 (plain passes)",
        "step speedup",
        "235B: how free must drafting be?",
    )
    grid = _heatmap(folder / "nemo_heatmap.png", c0, c1, (model["R_gen_512"], model["R_gen_2048"]))
    return Section(
        "235B-A22B, simulated by the paper",
        f"c0 = {c0}, c1 = {c1}, R = {model['R_gen_512']} at 512 and {model['R_gen_2048']} at 2048 GPUs. They are "
        "solved from the first two published points, and R at 2048 GPUs from the last; the third point is the test.",
        lines,
        "The published speedups need drafted tokens that cost 3 % of a pass each. At the cost that the measured 8B "
        "runs imply, most of the speedup is gone (nemo_cost.png).",
        [grid, drawn],
    )


def _heatmap(path: Path, c0: float, c1: float, shares: tuple[float, float]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drafted, alphas = np.arange(1, 8), np.arange(1, 9)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for axes, share, gpus in zip(panels, shares, (512, 2048), strict=True):
        values = np.array(
            [[step_speedup(share, a / (c0 + c1 * k)) if a <= k + 1 else np.nan for k in drafted] for a in alphas]
        )
        axes.imshow(values, origin="lower", aspect="auto", extent=(0.5, 7.5, 0.5, 8.5), cmap="viridis")
        for row, a in enumerate(alphas):
            for column, k in enumerate(drafted):
                if a <= k + 1:
                    axes.text(k, a, f"{values[row, column]:.2f}", ha="center", va="center", color="white", fontsize=7)
        axes.set(xlabel="k drafted", ylabel="alpha, tokens per cycle", title=f"step speedup, {gpus} GPUs")
    with replacing(path) as file:
        figure.savefig(file)
    plt.close(figure)
    return path.name
