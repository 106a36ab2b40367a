"""DAS (arXiv 2511.13841): its figures, replayed on recorded chains of thought with the paper's own latencies (Fig 8).

One engine is simulated, with its share of the problems. That is enough because engines are alike and the siblings of a
problem stay together.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, Section
from experiments.papers import das_drafts, das_fig10, das_rollouts
from experiments.papers.replayed import Setting
from experiments.run.parallel import in_processes
from experiments.run.progress import Progress
from experiments.settings.checked import Settings
from experiments.simulate.chains_of_thought import chains_of_thought
from experiments.simulate.latency_fits import fit_affine, relative_error
from experiments.simulate.latency_forms import Passes
from experiments.simulate.synthesis import Synthesis
from experiments.simulate.tables import Table
from experiments.simulate.times import Times

PREFACE = (
    "Text: recorded chains of thought, because no recording of the paper's own runs exists. Where a trace has too few "
    "responses of a problem, further ones are synthetic (experiments/simulate/synthesis.py). Latencies: points of the "
    "paper's Fig 8, digitised, unless a section says otherwise. One engine of the paper's 8 or 16 is simulated, with "
    "its share of the problems. Reduction = 1 - time with speculation / time without. The paper's figures have no unit "
    "of time; seconds are assumed."
)

PARTS: tuple[Callable[[Setting], list[Section]], ...] = (
    das_rollouts.maths,
    lambda setting: [das_fig10.prices(setting)],
    das_rollouts.code,
    lambda setting: [das_drafts.draft_scope(setting)],
)


def sections(task: Any, budget: Settings, published: dict[str, Any], folder: Path, progress: Progress) -> list[Section]:
    """Simulate the paper's experiments. Returns all sections of the report; their figures are in `folder`."""
    recorded = chains_of_thought(Path(task.traces), int(task.problems))
    points = published["das_fig8"]["data"]
    times = Times(
        Table(tuple(points["tokens"]), tuple(t / 1e3 for t in points["latency_ms"])), draft_request=task.draft_us * 1e-6
    )
    synthesis = Synthesis(recorded, float(task.run_length))
    setting = Setting(task, dict(budget), recorded, synthesis, times, published, folder, progress)
    parts = in_processes(
        [partial(part, setting) for part in PARTS],
        lambda done: progress.note(f"{done} of {len(PARTS)} parts are simulated"),
    )
    return [pass_latency(points), *chain(*parts)]


def pass_latency(points: dict[str, Any]) -> Section:
    """Make the section of Fig 8: fit the paper's Eq 1, an affine time of a pass, to the points of the digitised
    figure."""
    tokens, times = np.array(points["tokens"], float), np.array(points["latency_ms"]) / 1e3
    passes = Passes(tokens, tokens, np.zeros(len(tokens)), times)
    lines = []
    for fit in points["fits"]:
        first, last = fit["token_range"]
        part = passes[tokens <= last]
        form = fit_affine(part)
        lines.append(
            Line(
                f"c_base ms, c_tok us over {first}-{last} tokens; mean error",
                f"{fit['c_base_ms']}, {fit['c_tok_us']}",
                "error about 12 %",
                f"{form.c_base * 1e3:.1f}, {form.c_tok * 1e6:.0f}; {percent(relative_error(form, part))}",
            )
        )
    return Section("Fig 8: latency of a pass", "Least squares of relative errors, through the digitised points.", lines)
