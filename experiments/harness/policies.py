"""Where the policy lies. `policy=small` is made on the spot and cached."""

from collections.abc import Callable
from pathlib import Path

from experiments.harness.config import RunConfig
from experiments.harness.data import AGENT


def policy_directory(config: RunConfig, progress: Callable[[str], None]) -> str:
    """The configured directory or hub id; for `policy=small` the directory where it is cached, made if needed.

    progress: called with a line while the policy is made.
    """
    if config.policy.path is not None:
        return config.policy.path
    from experiments.small_policy.small import ARITHMETIC, SmallPolicyConfig, build_small_policy

    cache = Path(config.cache) / "policies"
    if config.data.name == AGENT:
        from experiments.small_policy.calculator.corpus import CalculatorCorpus

        # small.py does not know this corpus: its text is part of the names under which other policies are cached.
        agent = SmallPolicyConfig(logit_scale=1.25, corpus=CalculatorCorpus())  # type: ignore[arg-type]
        return str(build_small_policy(agent, cache, progress))
    chains = config.data.judged_by == "code" or config.data.name == "arithmetic"
    policy = build_small_policy(ARITHMETIC if chains else SmallPolicyConfig(), cache, progress)
    if config.data.judged_by == "code":
        from experiments.small_policy.programs.policy import build_programs_policy

        policy = build_programs_policy(policy, cache, progress)
    return str(policy)
