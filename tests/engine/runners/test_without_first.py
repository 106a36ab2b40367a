"""The first runner's part can be deleted: without it, engines on the second runner answer as before."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import json, sys
import das
from vllm import LLM, SamplingParams
das.install()
own = das.engine_arguments("das", budget={"name": "fixed", "tokens": 8}, runner=sys.argv[2])
sizes = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 64}
llm = LLM(sys.argv[1], enforce_eager=True, **sizes, **own)
prompts = [{"prompt_token_ids": text} for text in ([5, 6, 7], [8, 9])]
params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=40, ignore_eos=True, logprobs=0) for seed in (3, 4)]
answers = []
for tick in (1, 2):
    for output in llm.generate(prompts, params, use_tqdm=False):
        answers.append([output.outputs[0].token_ids, output.outputs[0].cumulative_logprob])
    drafted = llm.collective_rpc("das_end_rollout", args=(tick,))[0]["drafted"]
print(json.dumps({"das": das.__file__, "drafted": drafted, "answers": answers}))
"""


def answers(folder: Path, policy: str, runner: str) -> Any:
    """What the program prints with the das that lies in this folder."""
    command = [sys.executable, "-c", PROGRAM, policy, runner]
    run = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert Path(found.pop("das")).is_relative_to(folder)
    return found


@pytest.mark.slow
def test_the_second_runner_needs_nothing_of_the_first(tiny_policy: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "das", tmp_path / "das")
    shutil.rmtree(tmp_path / "das" / "engine" / "runners" / "first")
    without = answers(tmp_path, tiny_policy, "second")
    assert without["drafted"] > 0
    assert without == answers(ROOT, tiny_policy, "first")
