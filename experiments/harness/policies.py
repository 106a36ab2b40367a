"""Where the policy lies. `policy=small` is made on the spot and cached."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.harness.config import RunConfig
from experiments.harness.data import AGENT
from experiments.run.errors import UserError

if TYPE_CHECKING:
    from experiments.small_policy.small import SmallPolicyConfig

SMALL_MTP = "small_mtp"  # the small policy that has an MTP layer
# Sizes of the small policy's draft model: one layer of two heads, where the policy has four layers of three or four.
DRAFT_SIZES: dict[str, Any] = {"hidden_size": 128, "layers": 1, "heads": 2, "kv_heads": 2, "intermediate_size": 384}


def policy_directory(config: RunConfig, progress: Callable[[str], None]) -> str:
    """The configured directory or hub id; for `policy=small` the directory where it is cached, made if needed.

    An arm that drafts with a small policy's draft model gets it made here, too. progress: called with a line while
    they are made.
    """
    if config.arm.row.model == "draft model" and config.arm.speculative["model"] is None:
        from experiments.small_policy.small import build_small_policy

        build_small_policy(
            _draft_config(config), _cache(config), lambda line: progress(line.replace("policy", "draft model"))
        )
    if config.policy.path is not None:
        return config.policy.path
    from experiments.small_policy.small import ARITHMETIC, SmallPolicyConfig, build_small_policy

    cache = _cache(config)
    if config.data.name == AGENT:
        from experiments.small_policy.calculator.corpus import CalculatorCorpus

        # small.py does not know this corpus: its text is part of the names under which other policies are cached.
        agent = SmallPolicyConfig(logit_scale=1.25, corpus=CalculatorCorpus())  # type: ignore[arg-type]
        return str(build_small_policy(_with_effort(agent, config), cache, progress))
    if config.policy.name == SMALL_MTP:
        from experiments.small_policy.mtp.policy import build_mtp_policy

        return str(build_mtp_policy(_of_text(config), cache, progress))
    chains = config.data.judged_by == "code" or config.data.name == "arithmetic"
    made = _with_effort(ARITHMETIC if chains else SmallPolicyConfig(), config)
    policy = build_small_policy(made, cache, progress)
    if config.data.judged_by == "code":
        from experiments.small_policy.programs.policy import build_programs_policy

        policy = build_programs_policy(policy, cache, progress, config.policy.effort)
    return str(policy)


def draft_model_directory(config: RunConfig) -> str:
    """The draft model of an arm that drafts with one: the configured directory or hub id, or where `policy_directory`
    makes one for the small policy. Raises UserError for a policy that none is made for.
    """
    configured = config.arm.speculative["model"]
    if configured is not None:
        return str(configured)
    from experiments.small_policy.small import policy_key

    return str(_cache(config) / policy_key(_draft_config(config)))


def _draft_config(config: RunConfig) -> "SmallPolicyConfig":
    """The draft model that learns the same text as the small policy, with the same tokenizer. Raises UserError."""
    other = config.policy.path is not None or config.policy.name == SMALL_MTP  # whose tokenizer is Qwen2's
    if other or config.data.name == AGENT or config.data.judged_by == "code":
        raise UserError(
            "arm.speculative.model=null: a draft model is made for policy=small on puzzles and arithmetic only; name "
            "the folder of one that has the policy's tokenizer"
        )
    return replace(_of_text(config), **DRAFT_SIZES)


def check_mtp(config: RunConfig) -> None:
    """Refuse an MTP layer that the policy does not have, or a policy with one on other data. Raises UserError."""
    made = config.policy.path is None
    if config.arm.row.model == "mtp layer" and made and config.policy.name != SMALL_MTP:
        raise UserError(f"arm {config.arm.name}: policy={config.policy.name} has no MTP layer; take policy={SMALL_MTP}")
    if made and config.policy.name == SMALL_MTP and (config.data.name == AGENT or config.data.judged_by == "code"):
        raise UserError(f"policy={SMALL_MTP}: it is made for data=puzzles and data=arithmetic only")


def _of_text(config: RunConfig) -> "SmallPolicyConfig":
    """The small policy that learns the text of puzzles or arithmetic."""
    from experiments.small_policy.small import ARITHMETIC, SmallPolicyConfig

    return _with_effort(ARITHMETIC if config.data.name == "arithmetic" else SmallPolicyConfig(), config)


def _with_effort(policy: "SmallPolicyConfig", config: RunConfig) -> "SmallPolicyConfig":
    """The small policy, made in `policy.effort` of the optimizer steps of each phase of its corpus."""
    corpus = policy.corpus
    steps = {field.name: getattr(corpus, field.name) for field in fields(corpus) if field.name.endswith("_steps")}
    shorter = {name: max(1, round(config.policy.effort * count)) for name, count in steps.items()}
    return replace(policy, corpus=replace(corpus, **shorter))


def _cache(config: RunConfig) -> Path:
    return Path(config.cache) / "policies"
