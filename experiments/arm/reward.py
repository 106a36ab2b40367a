"""Make the configured reward, or refuse one that cannot judge here."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from experiments.run.errors import UserError
from experiments.settings.groups import CodeConfig, MathsConfig, OwnConfig, RewardConfig
from rewards import maths
from rewards.code import CodeReward
from rewards.conversations import ConversationReward, JudgedConversations, OwnConversations, brevity
from rewards.maths import MathsReward
from rewards.workers import JudgeError


def make_reward(config: RewardConfig) -> ConversationReward:
    """Make the reward function that TRL calls. Its worker processes start at the first call."""
    if isinstance(config, OwnConfig):
        return OwnConversations(load_function(config.function), f"reward.function={config.function}")
    if isinstance(config, CodeConfig):
        return JudgedConversations(lambda: CodeReward(config.parallel, config.limits), "tests")
    if isinstance(config, MathsConfig):
        return JudgedConversations(lambda: MathsReward(config.parallel, config.timeout_s), "answer")
    return OwnConversations(brevity, "reward=brevity")


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
    if isinstance(config, OwnConfig):
        load_function(config.function)
    try:
        if isinstance(config, MathsConfig):
            maths.check()
        if isinstance(config, CodeConfig):
            CodeReward(1, config.limits).close()
    except JudgeError as error:
        raise UserError(str(error)) from error
