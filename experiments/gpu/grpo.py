"""The part `grpo` of task=check_gpu: two training steps with and without drafts are equal bit by bit (level 3)."""

import json
import shutil

from analysis.arms import identity_verdict
from experiments.gpu.scale import Scale, Verdict
from experiments.registry import TASKS
from experiments.settings.compose import composed
from experiments.settings.config import run_config

COMPARED = "task=compare arms=[none,das] task.lock_step=false budget=fixed checkpoint.every=0 wandb=off"
ON_GPU = (  # without graphs, which take half a minute an arm to make
    "engine=gpu engine.processes=1 engine.max_model_len=1024 engine.gpu_memory_utilization=0.3 engine.exact=bits "
    "engine.enforce_eager=true"
)


def grpo(scale: Scale) -> Verdict:
    """Run task=compare, one arm after the other."""
    folder = scale.cache / "check_gpu" / "grpo"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier call
    folder.mkdir(parents=True)
    settings = f"{COMPARED} {scale.pick(ON_GPU, 'setting=smoke')} trainer.max_steps=2".split()
    run = composed([*settings, f"cache={scale.cache}", f"out={folder}"])
    TASKS["compare"].load()(run_config(run.config), run, str(folder))
    result = json.loads((folder / "result.json").read_text())
    identical, arm = result["identical"]["das"], result["arms"]["das"]
    scale.note(identical=identical, tokens_per_pass=arm["tokens_per_pass"], accepted=arm["accepted"])
    drafted = arm["accepted"]["mean"] > 0
    same = all(equal for what, equal in identical.items() if what != "first_difference")
    return Verdict(same and drafted, ("" if drafted else "NO DRAFTED TOKEN WAS ACCEPTED; ") + identity_verdict(result))
