"""Find the folder of a run's policy, and of its draft model."""

from collections.abc import Callable
from pathlib import Path

from experiments.arm.recorded_text import is_recorded, recorded_texts, vocabulary_of
from experiments.policies import SHIPPED
from experiments.policies.shapes import random_policy, shape_of
from experiments.run.errors import UserError
from experiments.settings.config import RunConfig

SMOLLM2 = "smollm2"  # a pretrained language model
RANDOM = "random"  # weights that nobody trained


def small_kind(config: RunConfig) -> str:
    """Return the kind of small policy that fits a run's data: programs or puzzles."""
    return "programs" if config.data.judged_by == "code" else "puzzles"


def policy_directory(config: RunConfig, progress: Callable[[str], None]) -> str:
    """Return the policy: the configured directory or hub id, or the folder of a small policy, SmolLM2, random weights.

    progress: called with lines while SmolLM2 is converted or fine-tuned, which the cache keeps. Raises UserError if
    SmolLM2 is at hand nowhere.
    """
    if config.policy.path is not None:
        return config.policy.path
    if config.policy.name == SMOLLM2:
        return str(_smollm2(config, progress))
    if config.policy.name == RANDOM:
        return str(_random(config))
    return str(SHIPPED / small_kind(config))


def draft_model_directory(config: RunConfig) -> str:
    """Return the draft model of an arm that drafts with one: the configured directory or hub id, or that of the small
    policy for puzzles. Raises UserError for other policies."""
    configured = config.arm.speculative["model"]
    if configured is not None:
        return str(configured)
    if config.policy.path is not None or config.policy.name != "small" or small_kind(config) != "puzzles":
        raise UserError(
            "arm.speculative.model=null: only policy=small on puzzles has a draft model; name the folder of one that "
            "has the policy's tokenizer"
        )
    return str(SHIPPED / "draft")


def check_mtp(config: RunConfig) -> None:
    """Refuse an arm whose policy lacks an MTP layer. Raises UserError."""
    if config.arm.row.model == "mtp layer" and config.policy.path is None:
        name = config.policy.name
        raise UserError(f"arm {config.arm.name}: policy={name} has no MTP layer; name one that has by policy.path")


def _random(config: RunConfig) -> Path:
    """Return the folder of random weights, with the small policy's tokenizer. They have as many tokens as the recorded
    text of the run needs."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / small_kind(config), trust_remote_code=False)
    tokens, shape = len(tokenizer), shape_of(str(config.policy.shape))
    if is_recorded(config):
        tokens = max(tokens, vocabulary_of(recorded_texts(config, tokenizer.eos_token_id)))
    vocabulary = shape.vocabulary or -(-tokens // 128) * 128  # vLLM pads vocabularies to a multiple of 64
    dtype = shape.dtype if config.engine.dtype == "auto" else config.engine.dtype
    folder = random_policy(str(config.policy.shape), vocabulary, dtype, Path(config.cache) / "policies")
    if not (folder / "tokenizer_config.json").exists():
        tokenizer.save_pretrained(folder)
    return folder


def _smollm2(config: RunConfig, progress: Callable[[str], None]) -> Path:
    """Return the folder of SmolLM2, as it comes or after its cold start."""
    from experiments.policies.smollm2 import find_smollm2

    cache = Path(config.cache) / "policies"
    policy = find_smollm2(cache, progress)
    if config.policy.cold_start is None:
        return policy
    from experiments.policies.smollm2 import build_cold_start

    return build_cold_start(policy, cache, progress)
