"""The examples run as they are, and the README shows what they do."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_plain_vllm_script(tiny_policy: str) -> None:
    command = [sys.executable, "examples/vllm_rollouts.py", tiny_policy]
    runs = [
        subprocess.Popen([*command, method], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for method in ("none", "das")
    ]
    (none, none_tokens), (drafted, tokens) = (run.communicate(timeout=300) for run in runs)
    assert all(run.returncode == 0 for run in runs), tokens[-2000:]

    def ids(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("[[")]

    assert ids(tokens) == ids(none_tokens)
    assert len(ids(tokens)) == 4
    assert none.count("1.00 a pass, 0 drafted") == 4
    steps = [line.split() for line in drafted.splitlines() if line.startswith("step")]
    assert sum(int(words[-2]) for words in steps) > 0
    assert max(float(words[4]) for words in steps) > 1


def test_the_readme_shows_these_lines() -> None:
    readme = (ROOT / "README.md").read_text()
    example = (ROOT / "examples" / "vllm_rollouts.py").read_text()
    for line in ("das.engine_arguments(", "das_problem", 'llm.collective_rpc("das_end_rollout"', "das.speculate()"):
        assert line in readme
    for line in ("das.engine_arguments(", "das_problem", 'llm.collective_rpc("das_end_rollout"'):
        assert line in example
