"""task=audit: check at three levels that speculation changes no result on this machine.

1 distribution   compares the verifier's tokens for fixed logits to the softmax of these logits (chi-square test)
2 sample         compares rollouts without drafts to the arm's rollouts: token ids, sequences, logits
3 training       compares a few GRPO steps without drafts to the same steps with drafts
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis import arms as arm_analysis
from experiments.harness.agreement import (
    LISTED,
    describe_distribution,
    describe_sample,
    distribution,
    listed_response,
    sample_agreement,
)
from experiments.harness.arm_configs import arm_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.failures import in_own_process
from experiments.harness.policies import policy_directory
from experiments.harness.rollout_steps import RolloutRun, requests, tokenized
from experiments.harness.runs import lock_step
from experiments.harness.validate import check
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.training.stock import build_in_process


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Audit the config's arm at the three levels. Prints a line for each level, and writes result.json."""
    path = Path(folder)
    check(config)
    if not config.arm.drafts:
        raise UserError(
            f"arm={config.arm.name} drafts nothing, so there is nothing to audit: name another arm, such as arm=das"
        )
    progress = Progress(int(config.task.train_steps), 2)
    policy = policy_directory(config, progress.note)
    run_folder = RunFolder(path, config.resolved)
    arms = {"none": arm_config("none", overrides), config.arm.name: config}
    result: dict[str, Any] = {}
    draws = int(config.task.draws)
    plain = in_own_process("none", path, rollouts, arms["none"], policy)
    drafted = in_own_process(config.arm.name, path, rollouts, config, policy, draws)
    result["distribution"] = drafted["distribution"]
    progress.note(describe_distribution(result["distribution"]))
    if not drafted["accepted"]:
        raise RunFailed(
            f"arm {config.arm.name}: not one drafted token was accepted, so the audit would prove nothing; draft "
            "whatever it costs (budget=fixed), or roll out more (task.steps)"
        )
    result["sample"] = sample_agreement(plain["responses"], drafted["responses"])
    result["sample"]["accepted"] = drafted["accepted"]
    progress.note(describe_sample(result["sample"]))
    if config.task.train_steps:
        short = [*overrides, f"trainer.max_steps={config.task.train_steps}", "wandb=off"]
        trained = {name: arm_config(name, short) for name in arms}
        result["training"] = training_agreement(trained, policy, run_folder, progress)
    progress.note(f"result: {run_folder.write_result(result)}")


def training_agreement(
    arms: Mapping[str, RunConfig], policy: str, run_folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Do level 3: train both arms and print the verdict. Returns for each metric whether the arms are identical."""
    lock_step.run_arms(lock_step.Comparison(arms, policy, run_folder), progress)
    compared = arm_analysis.compare_arms(run_folder.path, list(arms))
    progress.note(f"level 3 training      {arm_analysis.identity_verdict(compared)}")
    identical: dict[str, Any] = compared["identical"][list(arms)[1]]
    return identical


def rollouts(config: RunConfig, policy: str, draws: int | None = None) -> dict[str, Any]:
    """Make the rollouts of one arm for level 2. Returns its responses, and how many drafted tokens were accepted.

    A response holds its token ids and, for each position, {token: raw logit} of the tokens with the largest logits.
    draws: number of tokens to draw for level 1, whose result is then returned too; None: level 1 is left out.
    """
    prepare_process(config)
    engine = build_in_process(engine_settings(config, policy), logprobs_mode="raw_logits", max_logprobs=LISTED)
    steps = RolloutRun(config, policy, int(config.task.steps), logprobs=LISTED)
    responses: list[dict[str, Any]] = []
    accepted = 0
    for request in requests(steps, tokenized(config, policy)):
        outputs, rollout = engine.roll_out(request)
        accepted += rollout.accepted
        responses += map(listed_response, outputs)
    result: dict[str, Any] = {"responses": responses, "accepted": accepted}
    return result | ({"distribution": distribution(draws)} if draws is not None else {})
