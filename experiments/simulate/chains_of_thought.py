"""Read the recorded chains of thought, from which workloads of the DAS paper's size are made."""

from pathlib import Path

from experiments.run.errors import UserError
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.workload import Workload, workload

# Trace -> number of prompts of every problem. These differ by a few words, and follow one another in the trace.
PROMPT_VARIANTS = {"steer_r1d_qwen14b_pos0to3": 4}
TRACES = ("areal_deepscaler_base", "areal_nemotron_base", "steer_r1d_qwen14b_pos0to3")


def chains_of_thought(folder: Path, problems: int) -> Workload:
    """Return the first `problems` problems of each trace in `folder` as one workload. No two traces share token ids.

    If a trace has several prompts of a problem (PROMPT_VARIANTS), only the first prompt is used. Raises UserError if a
    trace is missing.
    """
    files = [folder / f"{name}.jsonl.gz" for name in TRACES]
    if not all(file.exists() for file in files):
        raise UserError(f"task.traces={folder}: {', '.join(TRACES)} are not there: run task=recordings")
    names, responses, offset = [], [], 0
    for trace, file in zip(TRACES, files, strict=True):
        (recorded,) = read_rollouts(file)
        distinct = list(dict.fromkeys(recorded.problems))[:: PROMPT_VARIANTS.get(trace, 1)]
        chosen = set(distinct[:problems])
        for i, problem in enumerate(recorded.problems):
            if problem in chosen:
                names.append(f"{trace}/{problem}")
                responses.append(recorded.response(i) + offset)
        offset += int(recorded.tokens.max()) + 1
    return workload(names, responses)
