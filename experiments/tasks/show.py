"""task=show: write a page of a run's responses that marks the tokens that were drafted and accepted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import drafted_text, read
from experiments.harness.policies import policy_directory
from experiments.harness.replays.recorded_arms import arm_config_of
from experiments.run.errors import UserError, reading
from experiments.run.progress import Progress
from experiments.settings.config import RunConfig, run_config

PAGE = "drafted_text.html"


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Write the page into the folder of the run that it shows, and print its path."""
    task, progress = config.task, Progress(0)
    if task.run is None:
        raise UserError("task.run=FOLDER is missing: give the folder of a comparison, of task=rollout or of task=train")
    arm = Path(task.run) / "arms" / str(task.arm)
    arm = arm if arm.is_dir() else Path(task.run)
    recorded = sorted(int(path.name[5:10]) for path in (arm / "rollouts").glob("step_?????.jsonl.gz"))
    steps = sorted({recorded[0], recorded[-1]} if task.steps is None else set(task.steps)) if recorded else []
    if not steps or not set(steps) <= set(recorded):
        raise UserError(
            f"{arm} holds rollouts of steps {recorded or 'none'}: choose task.arm and task.steps among them"
        )
    named = task.tokenizer or policy_of(arm, str(config.cache))
    sections = [(f"step {step}", texts(arm, step, int(task.responses), named)) for step in steps]
    path = Path(task.run) / PAGE
    drafted_text.write(path, sections)
    progress.note(f"page: {path}")


def policy_of(arm: Path, cache: str) -> str:
    """Return the folder or hub id of the policy of an arm. cache: where policies are made, whatever the arm's folder
    says."""
    recorded = arm_config_of(arm)
    recorded.cache = cache
    return policy_directory(run_config(recorded), print)


def texts(arm: Path, step: int, count: int, tokenizer: str) -> list[drafted_text.DraftedText]:
    """Return the first `count` responses of a step.

    arm: the folder of an arm. tokenizer: a folder or hub id. Raises UserError for a rollout of which nobody recorded
    which tokens were drafted.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    with reading(arm / "rollouts" / f"step_{step:05d}.jsonl.gz"):
        rows = read.rollout(arm, step)[:count]
    if any(row["drafted"] and "emitted" not in row for row in rows):
        raise UserError(f"{arm} does not say which tokens were drafted (an older run): run it again")
    return [
        drafted_text.DraftedText(
            f"{row['problem_id']}, reward {row['reward']}",
            pieces(loaded, row["response_ids"]),
            row.get("emitted", [1] * row["passes"]),
            row["drafted"],
        )
        for row in rows
    ]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds. A token that ends inside a character adds nothing; the next one adds it."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer.backend_tokenizer, token) or "" for token in ids]
