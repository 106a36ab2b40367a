"""Would speculation pay for my rollouts? python examples/advise_own_rollouts.py [SETTINGS of task=advise ...]

Writes recorded responses as JSONL, a row a response, and asks task=advise about them: here for an H100 and a 7B model,
eight engines and 256 responses a step (configs/task/advise.yaml has every setting). Replace `responses` by your own.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def responses(step: int, problem: int) -> list[str]:
    """Four responses to a problem: sums done one after the other, sometimes wrongly, in one of two wordings."""
    dice = random.Random(f"{step} {problem}")
    texts = []
    for _ in range(4):
        lines, total = [], problem
        for number in range(1, dice.choice((20, 40, 160))):
            total += number * (problem + 3) if dice.random() > 0.02 else number
            lines.append(f"adding {number} times {problem + 3} {dice.choice(('gives', 'makes it'))} {total} .")
        texts.append(" ".join([*lines, f"so the answer is {total} ."]))
    return texts


with tempfile.TemporaryDirectory() as folder:
    recorded = Path(folder) / "rollouts.jsonl"
    with recorded.open("w") as file:
        for step in range(1, 5):
            for problem in range(16):
                for text in responses(step, problem):
                    # `response_ids`, token ids, in place of `response` where you have them.
                    file.write(json.dumps({"step": step, "problem_id": problem, "response": text}) + "\n")
    question = [f"task.rollouts={recorded}", "task.gpu=H100", "task.model=7B", "task.batch=256"]
    command = [sys.executable, "run.py", "task=advise", *question, *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
