"""Figures that compare the rollouts of the small policy with recorded rollouts of real models.

python -m experiments.recorded.likeness FOLDER writes likeness.json: the figures of the recorded traces in FOLDER. That
takes some minutes. task=policy reads the file, so it needs no traces.
"""

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.regime import length_figures
from experiments.recorded.drafter_replay import Das, Problems, Tally, replay_problem
from experiments.recorded.published_traces import LEFT_OUT_RUNS, PROMPT_VARIANTS
from experiments.recorded.rollouts import responses_of
from experiments.run.run_folder import write_text

FIGURES = Path(__file__).with_name("likeness.json")  # made from recorded traces
PAPERS = Path(__file__).with_name("likeness_papers.yaml")  # what papers publish, and what is wanted of the small policy

SIBLINGS = 8  # responses of a group; the default trainer.num_generations
DRAFTED = 16  # tokens of the longest draft
EPOCHS = 3  # whose rounds count in `accepted_per_round`; traces have up to 8, task=policy samples 3
GRAM = 8  # tokens of the n-grams by which siblings are compared
PROBLEMS, RESPONSES = 16, 64  # of each trace, at most
EDGES = np.linspace(0, 6, 25)  # bins of length over median length; the last one also takes longer responses
MULTIPLIERS = np.array([0x9E3779B97F4A7C15 ** (i + 1) % 2**64 for i in range(GRAM)], np.uint64)  # any odd numbers

TRACES = {  # name -> whose rollouts they are
    "areal_deepscaler_base": "DeepScaleR-1.5B-Preview, T=0.7 (inclusionAI/AReaL, PR 1340)",
    "areal_nemotron_base": "OpenMath-Nemotron-1.5B, T=0.7 (inclusionAI/AReaL, PR 1340)",
    "steer_r1d_qwen14b_pos0to3": "DeepSeek-R1-Distill-Qwen-14B, T=0.6 (cybercharlietang/reasoning-model-CoT-project)",
    "arctic_prob0019_tokenids": "R1-style, one problem, true token ids (snowflakedb/ArcticInference)",
    "rg_llama3b_rl": "Llama-3.2-3B after RL on reasoning-gym, T=0.6 (open-thought/reasoning-gym-eval)",
}


def likeness(problems: Problems) -> dict[str, Any]:
    """The figures of responses. Those of a problem are cut into groups of SIBLINGS, in order: a group is an epoch.

    Lengths are in tokens. `accepted_per_round`, `accepted_by_epoch`: draft tokens accepted in passes that verify any,
    with the default drafter, at most DRAFTED tokens and no history at the start; the first is the mean of the first
    EPOCHS epochs, because later ones have more history. `similarity`: the share of a response's GRAM-grams that are in
    one of its siblings, mean over responses. `histogram`: shares of responses by length over median length, in the bins
    EDGES. Raises ValueError if no problem has SIBLINGS responses.
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
    """Accepted tokens a round; None without rounds."""
    return accepted / rounds if rounds else None


def mean_of_first(by_epoch: Sequence[float | None]) -> float | None:
    """The mean of the first EPOCHS epochs that have a figure; None if none has."""
    figures = [figure for figure in by_epoch[:EPOCHS] if figure is not None]
    return float(np.mean(figures)) if figures else None


def shared_grams(group: Sequence[np.ndarray]) -> list[float]:
    """For each response of GRAM tokens or more, the share of its GRAM-grams that occur in one of the others."""
    grams = [hashed_grams(response) for response in group]
    shares = []
    for i, own in enumerate(grams):
        if len(own):
            others = np.concatenate([other for j, other in enumerate(grams) if j != i])
            shares.append(float(np.isin(own, others).mean()))
    return shares


def hashed_grams(response: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each run of GRAM tokens, uint64 [tokens - GRAM + 1]."""
    if len(response) < GRAM:
        return np.empty(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(response.astype(np.uint64) + np.uint64(1), GRAM)
    return (windows * MULTIPLIERS).sum(axis=1, dtype=np.uint64)


def read_trace(path: Path) -> Problems:
    """The first PROBLEMS problems of a recorded trace, with at most RESPONSES responses each."""
    name = path.name.removesuffix(".jsonl.gz")
    chosen = list(responses_of(path).items())[:: PROMPT_VARIANTS.get(name, 1)][:PROBLEMS]
    return [(problem, responses[:RESPONSES]) for problem, responses in chosen]


def share_correct(path: Path) -> float:
    """Mean of the recorded rewards, which are 0 or 1, without the runs that `read_trace` leaves out."""
    left_out = LEFT_OUT_RUNS.get(path.name)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return float(np.mean([row["reward"] for row in rows if not (left_out and left_out.fullmatch(row["run"]))]))


def main() -> None:
    """Write likeness.json, with the figures of the traces in the folder that the command line names."""
    folder = Path(sys.argv[1])
    made = {}
    for name, source in TRACES.items():
        path = folder / f"{name}.jsonl.gz"
        # Nobody recorded the probabilities of tokens, so there is no entropy.
        made[name] = {"source": source, "correct": share_correct(path), "entropy": None, **likeness(read_trace(path))}
        print(name, {key: value for key, value in made[name].items() if isinstance(value, float)})
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in made.items())
    write_text(FIGURES, f"{{{body}}}\n")


if __name__ == "__main__":
    main()
