"""Make the configured reward, and the sandbox in which it runs code."""

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

from experiments.harness.config import RewardConfig
from experiments.run.errors import UserError
from rewards import maths
from rewards.code import CodeReward
from rewards.conversations import BrevityConversations, ConversationReward, JudgedConversations, OwnConversations
from rewards.isolation import Limits
from rewards.library import LibraryReward
from rewards.maths import MathsReward
from rewards.sandbox import Sandbox
from rewards.workers import JudgeError


def make_reward(config: RewardConfig) -> ConversationReward:
    """Make the reward function that TRL calls. Its worker processes start at the first call.

    Raises UserError for an unknown name.
    """

    def maths_workers() -> MathsReward:
        return MathsReward(config.parallel, config.timeout_s)

    def judges() -> CodeReward:
        return CodeReward(make_sandbox(config, config.parallel))

    def library_workers() -> LibraryReward:
        return LibraryReward(config.parallel, config.timeout_s)

    rewards: dict[str, Callable[[], ConversationReward]] = {
        "maths": lambda: JudgedConversations(maths_workers, "answer"),
        "code": lambda: JudgedConversations(judges, "tests"),
        "reasoning_gym": lambda: JudgedConversations(library_workers, "entry"),
        "brevity": BrevityConversations,
        "own": lambda: OwnConversations(load_function(config.function), f"reward.function={config.function}"),
    }
    if config.name not in rewards:
        raise UserError(f"reward={config.name}: choose {', '.join(rewards)}")
    return rewards[config.name]()


def load_function(name: str) -> Callable[..., Any]:
    """Import and return the reward function `name`, "module:function". Raises UserError if there is none."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None) if module and attribute else None
    except ModuleNotFoundError as error:
        raise UserError(f"reward.function={name}: no module {error.name!r}; put its folder on PYTHONPATH") from error
    if not callable(found):
        raise UserError(f"reward.function={name}: give module:function, such as my_rewards:digits")
    function: Callable[..., Any] = found
    return function


def check_judge(config: RewardConfig) -> None:
    """Raise UserError if this machine does not allow the sandbox of reward=code, if math-verify does not work for
    reward=maths, or if there is no function for reward=own. Other rewards need no check."""
    if config.name == "own":
        load_function(config.function)
    try:
        if config.name == "maths":
            maths.check()
        if config.name == "code":
            make_sandbox(config, parallel=1).close()
    except JudgeError as error:
        raise UserError(str(error)) from error


def make_sandbox(config: RewardConfig, parallel: int) -> Sandbox:
    """Make the sandbox of reward=code, for `parallel` solutions at a time.

    Raises UserError for an unknown limit, SandboxError if this machine does not allow the isolation.
    """
    limits = config.limits or {}
    known = [field.name for field in fields(Limits)]
    if unknown := limits.keys() - set(known):
        raise UserError(f"reward.limits has no {', '.join(sorted(unknown))}: it has {', '.join(known)}")
    return Sandbox(parallel, Limits(**limits), config.isolation)
