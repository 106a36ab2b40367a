"""Those checks of task=check_gpu that run another task, such as force or compare, with settings for the GPU."""

import json
import shutil
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir

from analysis.arms import identity_verdict
from das.files import write_text
from experiments.gpu.verdict import Scale, Verdict
from experiments.registry import TASKS
from experiments.run.checks import check_values
from experiments.run.compose import compose_config
from experiments.run.errors import CONFIGS

CPU_TRAINING = ["setting=maths_smoke", "policy.effort=0.01"]  # its small policy is made in seconds, and solves nothing
ONE_GPU = ["engine=gpu", "engine.processes=1", "engine.max_model_len=8192"]


def run_task(name: str, overrides: list[str], scale: Scale) -> dict[str, Any]:
    """Run a task in the part's folder, as run.py would. Returns the content of its result.json."""
    folder = scale.folder / name
    shutil.rmtree(folder, ignore_errors=True)  # an earlier try may have left it
    folder.mkdir(parents=True)
    overrides = [f"task={name}", *overrides, "wandb=off", f"cache={scale.cache}", f"out={scale.folder}"]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose_config(overrides)
        check_values(config)
        TASKS[name].load()(config, overrides, str(folder))
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def forced(scale: Scale) -> Verdict:
    """Run task=force on a recording of synthetic responses (`write_recording`)."""
    recording = scale.folder / "rollouts.jsonl"
    live, siblings, epochs = scale.pick(([64, 8], 8, 2), ([4, 2], 2, 2))
    write_recording(recording, max(live) // siblings, siblings * epochs, scale.pick(500, 40))
    sizes = scale.pick(
        [*ONE_GPU, "task.shape=7b", "task.kv_gib=4", "task.tokens=8000", "engine.gpu_memory_utilization=0.1"],
        ["task.shape=tiny", "task.tokens=400"],
    )
    settings = [f"task.rollouts={recording}", f"task.live=[{','.join(map(str, live))}]"]
    settings += [f"task.siblings={siblings}", f"task.epochs={epochs}"]
    result = run_task("force", [*settings, *sizes, "task.arms=[none,stock,das]"], scale)
    ratios = {
        f"{arm} to {base}": result[f"ratio_to_{base}"][arm]["rollout_s"]["overall"]
        for arm, base in (("das", "none"), ("das", "stock"), ("none", "stock"))
    }
    equal = result["forced"]["equal"]
    line = (
        f"{result['forced']['tokens']} forced tokens {'came out' if equal else 'DID NOT COME OUT'}; rollout time of "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        + f"; {result['arms']['das']['tokens_per_pass']:.2f} tokens a pass"
    )
    return Verdict(equal, line, result)


def write_recording(path: Path, problems: int, responses: int, tokens: int) -> None:
    """Write synthetic responses that share phrases, in the format of experiments/recorded/rollouts.py."""
    from experiments.recorded.drafter_replay import made_up_problems

    rows = [
        {"problem_id": problem, "run": "one", "response_ids": text.tolist()}
        for problem, texts in made_up_problems(problems, responses, tokens, seed=0)
        for text in texts
    ]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def pass_times(scale: Scale, shape: str) -> Verdict:
    """Run task=calibrate on random weights. Tasks that simulate can read its latency.json (`task.latency`)."""
    sizes = scale.pick(
        [
            *ONE_GPU,
            f"task.shape={shape}",
            "task.live=[1,8,64,256]",
            "task.drafts=[0,4,16]",
            "task.contexts=[256,4096]",
            "task.passes=8",
            "engine.gpu_memory_utilization=0.85",
            "trainer.max_completion_length=1024",
        ],
        ["task.shape=tiny", "task.live=[1,2]", "task.drafts=[0,2]", "task.contexts=[16,64]", "task.passes=3"],
    )
    result = run_task("calibrate", [*sizes, "task.rounds=1"], scale)
    measured = json.loads((scale.folder / "calibrate" / "latency.json").read_text())
    seconds: dict[tuple[int, int], list[float]] = {}
    for live, tokens, _, took in measured["passes"]:
        seconds.setdefault((int(live), int(tokens)), []).append(took)
    widest = max(live for live, _ in seconds)
    cells = {(live, tokens): sorted(took)[len(took) // 2] for (live, tokens), took in seconds.items()}
    most = max(tokens for live, tokens in cells if live == widest)
    error = result["forms"]["drafting"]["error"]
    line = (
        f"1 live {1e3 * cells[1, 1]:.1f} ms; {widest} live {1e3 * cells[widest, widest]:.1f} ms, with {most - widest} "
        f"drafted tokens {1e3 * cells[widest, most]:.1f} ms; error of the fitted form {error:.0%}"
    )
    return Verdict(True, line, result)


def policy(scale: Scale) -> Verdict:
    """Build the small policy, on which the part grpo trains, unless the cache has it."""
    from experiments.harness.config import run_config
    from experiments.harness.policies import policy_directory

    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = run_config(compose_config([f"cache={scale.cache}", "task=train", *scale.pick([], CPU_TRAINING)]))
    lines: list[str] = []
    folder = policy_directory(config, lines.append)
    return Verdict(True, lines[-1] if lines else f"it is there already: {Path(folder).name}")


def grpo(scale: Scale) -> Verdict:
    """Run task=compare: a few training steps with and without drafts, one arm after the other."""
    sizes = scale.pick(
        ["engine=gpu", "engine.processes=1", "engine.max_model_len=1024", "engine.gpu_memory_utilization=0.3"],
        CPU_TRAINING,
    )
    common = ["arms=[none,das]", "task.lock_step=false", "task.derived=false", "checkpoint.every=0", "budget=fixed"]
    result = run_task("compare", [*sizes, *common, f"trainer.max_steps={scale.pick(3, 2)}"], scale)
    identical = result["identical"]["das"]
    drafted = result["arms"]["das"]["accepted"]["mean"] > 0
    same = all(equal for what, equal in identical.items() if what != "first_difference")
    idle = "" if drafted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    return Verdict(same and drafted, idle + identity_verdict(result), {"identical": identical})
