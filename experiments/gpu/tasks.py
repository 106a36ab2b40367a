"""The part `grpo` of task=check_gpu, which runs task=compare, and the made-up recording of the speed parts."""

import json
import shutil
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir

from analysis.arms import identity_verdict
from das.files import write_text
from experiments.gpu.verdict import Scale, Verdict
from experiments.registry import TASKS
from experiments.run.errors import CONFIGS
from experiments.settings.compose import compose_config
from experiments.settings.config import run_config


def run_task(name: str, overrides: list[str], scale: Scale) -> dict[str, Any]:
    """Run a task in the part's folder, as run.py would. Returns the content of its result.json."""
    folder = scale.folder / name
    shutil.rmtree(folder, ignore_errors=True)  # an earlier try may have left it
    folder.mkdir(parents=True)
    overrides = [f"task={name}", *overrides, "wandb=off", f"cache={scale.cache}", f"out={scale.folder}"]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        TASKS[name].load()(run_config(compose_config(overrides)), overrides, str(folder))
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def write_recording(path: Path, problems: int, responses: int, tokens: int, vocabulary: int) -> None:
    """Write synthetic responses that share phrases, in the format of experiments/simulate/rollouts.py. vocabulary:
    their token ids are smaller."""
    from experiments.simulate.made_up import made_up_problems

    rows = [
        {"problem_id": problem, "run": "one", "response_ids": (text % vocabulary).tolist()}
        for problem, texts in made_up_problems(problems, responses, tokens, seed=0)
        for text in texts
    ]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def grpo(scale: Scale) -> Verdict:
    """Run task=compare: a few training steps with and without drafts, one arm after the other. On a GPU without graphs,
    which take half a minute an arm to make."""
    bits = ["engine.exact=bits", "engine.enforce_eager=true"]
    sizes = scale.pick(
        ["engine=gpu", "engine.processes=1", "engine.max_model_len=1024", "engine.gpu_memory_utilization=0.3", *bits],
        ["setting=smoke"],
    )
    common = ["arms=[none,das]", "task.lock_step=false", "checkpoint.every=0", "budget=fixed"]
    result = run_task("compare", [*sizes, *common, f"trainer.max_steps={scale.pick(3, 2)}"], scale)
    identical = result["identical"]["das"]
    drafted = result["arms"]["das"]["accepted"]["mean"] > 0
    same = all(equal for what, equal in identical.items() if what != "first_difference")
    idle = "" if drafted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    return Verdict(same and drafted, idle + identity_verdict(result), {"identical": identical})
