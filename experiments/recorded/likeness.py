"""Compute statistics that compare the rollouts of the small policy with recorded rollouts of real models.

python -m experiments.recorded.likeness FOLDER writes likeness.json: the figures of the recorded traces in FOLDER. That
takes some minutes. task=policy reads the file, so it needs no traces.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.regime import length_figures
from das.files import unpacked, write_text
from experiments.recorded.drafter_replay import Das, Problems, Tally, replay_problem
from experiments.recorded.published_traces import LEFT_OUT_RUNS, PROMPT_VARIANTS
from experiments.recorded.rollouts import responses_of

FIGURES = Path(__file__).with_name("likeness.json")  # a file made from recorded traces
PAPERS = Path(__file__).with_name("likeness_papers.yaml")  # published figures, and our targets

SIBLINGS = 8  # responses of a group; the default trainer.num_generations
DRAFTED = 16  # tokens of the longest draft
EPOCHS = 3  # `accepted_per_round` counts the first 3 epochs; traces have up to 8, task=policy samples 3
GRAM = 8  # tokens of the n-grams by which siblings are compared
PROBLEMS, RESPONSES = 16, 64  # the most problems of each trace, and the most responses to each
EDGES = np.linspace(0, 6, 25)  # bins of length / median length; the last bin also counts longer responses
MULTIPLIERS = np.array([0x9E3779B97F4A7C15 ** (i + 1) % 2**64 for i in range(GRAM)], np.uint64)  # any odd numbers

TRACES = {  # name of a trace -> the model that wrote the rollouts
    "areal_deepscaler_base": "DeepScaleR-1.5B-Preview, T=0.7 (inclusionAI/AReaL, PR 1340)",
    "areal_nemotron_base": "OpenMath-Nemotron-1.5B, T=0.7 (inclusionAI/AReaL, PR 1340)",
    "steer_r1d_qwen14b_pos0to3": "DeepSeek-R1-Distill-Qwen-14B, T=0.6 (cybercharlietang/reasoning-model-CoT-project)",
    "arctic_prob0019_tokenids": "R1-style, one problem, true token ids (snowflakedb/ArcticInference)",
    "rg_llama3b_rl": "Llama-3.2-3B after RL on reasoning-gym, T=0.6 (open-thought/reasoning-gym-eval)",
}


def likeness(problems: Problems) -> dict[str, Any]:
    """Return statistics of responses. The responses to a problem are cut into groups of SIBLINGS; each group is an
    epoch.

    Lengths are in tokens. `accepted_by_epoch`: mean accepted tokens of a pass that verifies a draft, with the default
    drafter, drafts of at most DRAFTED tokens, and no history at the start. `accepted_per_round`: the mean of
    `accepted_by_epoch` over the first EPOCHS epochs, because later epochs have more history. `similarity`: the share of
    a response's GRAM-grams that also occur in one of its siblings, as a mean over responses. `histogram`: the shares of
    responses in the bins EDGES of length / median length. Raises ValueError if no problem has SIBLINGS responses.
    """
    groups = [
        responses[first : first + SIBLINGS]
        for _, responses in problems
        for first in range(0, len(responses) - SIBLINGS + 1, SIBLINGS)
    ]
    if not groups:
        raise ValueError(f"no problem has {SIBLINGS} responses")
    tally = Tally()
    for problem, responses in problems:
        replay_problem(problem, responses, Das(), SIBLINGS, DRAFTED, tally)
    lengths = [[len(response) for response in group] for group in groups]
    figures = length_figures(lengths)
    relative = np.concatenate(lengths) / figures["median_length"]
    shares = np.histogram(np.minimum(relative, EDGES[-1]), EDGES)[0] / len(relative)
    accepted = [accepted_a_round(*rounds) for _, rounds in sorted(tally.rounds_by_epoch.items())]
    return {
        **figures,
        "accepted_per_round": mean_of_first(accepted),
        "similarity": float(np.mean([share for group in groups for share in shared_grams(group)])),
        "accepted_by_epoch": accepted,
        "histogram": [round(float(share), 4) for share in shares],
        "responses": len(relative),
    }


def accepted_a_round(rounds: int, accepted: int) -> float | None:
    """Return the accepted tokens per round; None without rounds. rounds: number of passes that verified a draft."""
    return accepted / rounds if rounds else None


def mean_of_first(by_epoch: Sequence[float | None]) -> float | None:
    """Return the mean over the first EPOCHS epochs, leaving out None; None if only None remains."""
    figures = [figure for figure in by_epoch[:EPOCHS] if figure is not None]
    return float(np.mean(figures)) if figures else None


def shared_grams(group: Sequence[np.ndarray]) -> list[float]:
    """Return the share of GRAM-grams that also occur in another response, for each response of GRAM tokens or more."""
    grams = [hashed_grams(response) for response in group]
    shares = []
    for i, own in enumerate(grams):
        if len(own):
            others = np.concatenate([other for j, other in enumerate(grams) if j != i])
            shares.append(float(np.isin(own, others).mean()))
    return shares


def hashed_grams(response: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each GRAM-gram of the response, uint64 [tokens - GRAM + 1]."""
    if len(response) < GRAM:
        return np.empty(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(response.astype(np.uint64) + np.uint64(1), GRAM)
    return (windows * MULTIPLIERS).sum(axis=1, dtype=np.uint64)


def read_trace(path: Path) -> Problems:
    """Read the first PROBLEMS problems of a recorded trace, with at most RESPONSES responses each."""
    name = path.name.removesuffix(".jsonl.gz")
    chosen = list(responses_of(path).items())[:: PROMPT_VARIANTS.get(name, 1)][:PROBLEMS]
    return [(problem, responses[:RESPONSES]) for problem, responses in chosen]


def share_correct(path: Path) -> float:
    """Return the mean of the recorded rewards, which are 0 or 1. Skips the runs that `read_trace` leaves out."""
    left_out = LEFT_OUT_RUNS.get(path.name)
    rows = [json.loads(line) for line in unpacked(path).splitlines()]
    return float(np.mean([row["reward"] for row in rows if not (left_out and left_out.fullmatch(row["run"]))]))


def main() -> None:
    """Write likeness.json, with the statistics of the traces in the folder that the command line names."""
    folder = Path(sys.argv[1])
    made = {}
    for name, source in TRACES.items():
        path = folder / f"{name}.jsonl.gz"
        # The traces do not hold the probabilities of tokens, so there is no entropy.
        made[name] = {"source": source, "correct": share_correct(path), "entropy": None, **likeness(read_trace(path))}
        print(name, {key: value for key, value in made[name].items() if isinstance(value, float)})
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in made.items())
    write_text(FIGURES, f"{{{body}}}\n")


if __name__ == "__main__":
    main()
