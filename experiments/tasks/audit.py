"""task=audit: does speculation change anything on this machine? Each level reports how many of how many agree.

1 distribution   the verifier's tokens for fixed logits, against softmax (chi-square)
2 sample         the arm's rollouts, against the same rollouts without drafts: token ids, sequences, logits
3 training       a few GRPO steps with drafts, against the same steps without
"""

import multiprocessing
import traceback
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis import arms as arm_analysis
from das.trl.engines.in_process import build_in_process
from experiments.harness import lock_step
from experiments.harness.agreement import (
    LISTED,
    describe_distribution,
    describe_sample,
    distribution,
    listed_response,
    sample_agreement,
)
from experiments.harness.arm_configs import arm_config
from experiments.harness.config import RunConfig, run_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.policies import policy_directory
from experiments.harness.rollout_steps import RolloutRun, roll_out_steps, tokenized
from experiments.harness.validate import check
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Audit the arm; print a line a level and write result.json."""
    config, path = run_config(composed), Path(folder)
    check(config)
    if not config.arm.drafts:
        raise UserError(
            f"arm={config.arm.name} drafts nothing, so there is nothing to audit: name another arm, such as arm=das"
        )
    progress = Progress(int(config.task["train_steps"]), 2)
    policy = policy_directory(config, progress.note)
    run_folder = RunFolder(path, config.resolved)
    arms = {"none": arm_config("none", overrides), config.arm.name: config}
    result: dict[str, Any] = {}
    result["distribution"] = in_own_process(path / "distribution.log", _distribution, config)
    progress.note(describe_distribution(result["distribution"]))
    plain, drafted = (in_own_process(path / f"{name}.log", rollouts, arm, policy) for name, arm in arms.items())
    if not drafted["accepted"]:
        raise RunFailed(
            f"arm {config.arm.name}: not one drafted token was accepted, so the audit would prove nothing; draft "
            "whatever it costs (budget=fixed), or roll out more (task.steps)"
        )
    result["sample"] = sample_agreement(plain["responses"], drafted["responses"])
    result["sample"]["accepted"] = drafted["accepted"]
    progress.note(describe_sample(result["sample"]))
    if config.task["train_steps"]:
        short = [*overrides, f"trainer.max_steps={config.task['train_steps']}", "wandb=off"]
        trained = {name: arm_config(name, short) for name in arms}
        result["training"] = training_agreement(trained, policy, run_folder, progress)
    progress.note(f"result: {run_folder.write_result(result)}")


def training_agreement(
    arms: Mapping[str, RunConfig], policy: str, run_folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Level 3: train both arms, print the verdict; what of the second arm is identical to the first."""
    lock_step.run_arms(lock_step.Comparison(arms, policy, run_folder), progress)
    compared = arm_analysis.compare_arms(run_folder.path, list(arms))
    progress.note(f"level 3 training      {arm_analysis.identity_verdict(compared)}")
    identical: dict[str, Any] = compared["identical"][list(arms)[1]]
    return identical


def in_own_process(log: Path, function: Any, *arguments: Any) -> Any:
    """The function's result, computed in a fresh process: engines and thread settings do not affect each other.

    Raises RunFailed, in one line, where the function raised or the process died.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            result, error = pool.submit(_with_error, log, function, *arguments).result()
        except BrokenProcessPool:
            raise RunFailed(
                f"a process of the audit died without an error message (out of memory?): see {log}"
            ) from None
    if error:
        raise RunFailed(f"{error} (log: {log})")
    return result


def _with_error(log: Path, function: Any, *arguments: Any) -> tuple[Any, str]:
    """(result, "") or (None, what went wrong in one line). Some of vLLM's errors cannot be sent to the parent."""
    with quiet_into(log):
        try:
            return function(*arguments), ""
        except Exception as error:
            traceback.print_exc()
            return None, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _distribution(config: RunConfig) -> dict[str, Any]:
    prepare_process(config)
    return distribution(int(config.task["draws"]))


def rollouts(config: RunConfig, policy: str) -> dict[str, Any]:
    """Level 2 of the audit: the responses of an arm, and how many drafted tokens were accepted.

    Each response has its token ids and, for each position, {token: raw logit} of the tokens with the largest logits.
    """
    prepare_process(config)
    engine = build_in_process(engine_settings(config, policy), logprobs_mode="raw_logits", max_logprobs=LISTED)
    steps = RolloutRun(config, policy, int(config.task["steps"]), logprobs=LISTED)
    responses: list[dict[str, Any]] = []
    accepted = 0
    for outputs, rollout in roll_out_steps(steps, engine, tokenized(config, policy)):
        accepted += rollout.accepted
        responses += map(listed_response, outputs)
    return {"responses": responses, "accepted": accepted}
