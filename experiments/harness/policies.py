"""Find the folder of a run's policy. A policy that is made here is made when it is needed, and cached."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.harness.config import RunConfig
from experiments.harness.data import AGENT
from experiments.run.errors import UserError

if TYPE_CHECKING:
    from experiments.small_policy.small import SmallPolicyConfig

SMOLLM2 = "smollm2"  # a pretrained language model
COLD_STARTS = ("words",)  # texts on which SmolLM2 can be fine-tuned
TEXTS = ("puzzles", "arithmetic")  # draft models can be made for these data


def small_kind(config: RunConfig) -> str:
    """Return the kind of small policy that fits a run's data: calculator, programs, arithmetic or puzzles."""
    if config.data.name == AGENT:
        return "calculator"
    if config.data.judged_by == "code":
        return "programs"
    return "arithmetic" if config.data.name == "arithmetic" else "puzzles"


def policy_directory(config: RunConfig, progress: Callable[[str], None]) -> str:
    """Return the policy: the configured directory or hub id, or the cached directory of a policy that is made here.

    Such a policy is made if the cache lacks it, and so is its draft model if the arm drafts with one. progress: called
    with lines meanwhile. Raises UserError if SmolLM2 is at hand nowhere.
    """
    from experiments.small_policy.small import build_small_policy

    cache = _cache(config)
    if config.arm.row.model == "draft model" and config.arm.speculative["model"] is None:
        build_small_policy(_draft_config(config), cache, lambda line: progress(line.replace("policy", "draft model")))
    if config.policy.path is not None:
        return config.policy.path
    if config.policy.name == SMOLLM2:
        return str(_smollm2(config, progress))
    if small_kind(config) == "programs":
        from experiments.small_policy.programs.policy import build_programs_policy

        return str(build_programs_policy(_small_config(config), cache, progress, config.policy.effort))
    return str(build_small_policy(_small_config(config), cache, progress))


def unmade_policy(config: RunConfig) -> str | None:
    """Return the key of the small policy that this run has to make first; None if it is in the cache or not needed."""
    from experiments.small_policy.small import policy_key, shipped_kind

    if config.policy.path is not None or config.policy.name == SMOLLM2:
        return None
    small = _small_config(config)
    if shipped_kind(small) or (small_kind(config) == "programs" and config.policy.effort == 1):
        return None
    key = policy_key(small)
    return None if (_cache(config) / key).exists() else key


def draft_model_directory(config: RunConfig) -> str:
    """Return the draft model of an arm that drafts with one: the configured directory or hub id, or else the folder in
    which `policy_directory` makes one for the small policy. Raises UserError if none can be made for this policy.
    """
    configured = config.arm.speculative["model"]
    if configured is not None:
        return str(configured)
    from experiments.small_policy.small import policy_key

    return str(_cache(config) / policy_key(_draft_config(config)))


def check_mtp(config: RunConfig) -> None:
    """Refuse an arm whose policy lacks an MTP layer. Raises UserError."""
    if config.arm.row.model == "mtp layer" and config.policy.path is None:
        name = config.policy.name
        raise UserError(f"arm {config.arm.name}: policy={name} has no MTP layer; name one that has by policy.path")


def check_cold_start(config: RunConfig) -> None:
    """Refuse a cold start on texts that do not exist. Raises UserError."""
    texts = config.policy.cold_start
    if texts is not None and texts not in COLD_STARTS:
        raise UserError(f"policy.cold_start={texts}: choose {', '.join(COLD_STARTS)}, or null for none")


def _smollm2(config: RunConfig, progress: Callable[[str], None]) -> Path:
    """Return the folder of SmolLM2, as it comes or after its cold start."""
    from experiments.real_policy.smollm2 import find_smollm2

    policy = find_smollm2(_cache(config), progress)
    if config.policy.cold_start is None:
        return policy
    from experiments.real_policy.cold_start import build_cold_start

    return build_cold_start(policy, _cache(config), progress)


def _draft_config(config: RunConfig) -> "SmallPolicyConfig":
    """Describe a draft model with text and tokenizer of the small policy. Raises UserError for other policies."""
    other = config.policy.path is not None or config.policy.name == SMOLLM2
    if other or small_kind(config) not in TEXTS:
        raise UserError(
            "arm.speculative.model=null: a draft model is made for policy=small on puzzles and arithmetic only; name "
            "the folder of one that has the policy's tokenizer"
        )
    from experiments.small_policy.small import DRAFT_SIZES

    return replace(_small_config(config), **DRAFT_SIZES)


def _small_config(config: RunConfig) -> "SmallPolicyConfig":
    """Return the config of the small policy for the run's data. It has the share `policy.effort` of the optimizer
    steps."""
    from experiments.small_policy.small import ARITHMETIC, KINDS

    policy = KINDS.get(small_kind(config), ARITHMETIC)  # programs are learned by the policy of arithmetic
    corpus = policy.corpus
    steps = {field.name: getattr(corpus, field.name) for field in fields(corpus) if field.name.endswith("_steps")}
    shorter = {name: max(1, round(config.policy.effort * count)) for name, count in steps.items()}
    return replace(policy, corpus=replace(corpus, **shorter))


def _cache(config: RunConfig) -> Path:
    return Path(config.cache) / "policies"
