"""Find the folder of a run's policy, and of its draft model; refuse a policy that cannot be trained. No code that comes
with a policy is run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from das.general.errors import reason_of
from das.trl.support import QUANTIZED
from experiments.arm.data import is_recorded, recorded_texts, vocabulary_of
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


def check_policy(path: str, max_model_len: int) -> None:
    """Refuse a policy that transformers cannot load as one complete model. Raises UserError.

    path: a folder; a hub id is not checked. max_model_len: tokens of prompt and response that the engine must hold.
    """
    folder = Path(path)
    if not folder.is_dir():
        if folder.is_absolute() or path.startswith(".") or folder.is_symlink() or folder.exists():
            raise UserError(f"policy.path={path} does not exist, or is no folder")
        return
    try:
        problem = _incomplete(folder, max_model_len)
    except Exception as error:  # safetensors, JSON, strict configs and tokenizers each raise errors of their own kinds
        problem = f"transformers cannot load it: {type(error).__name__}: {reason_of(error)}"
    if problem:
        raise UserError(f"policy.path={path}: {' '.join(problem.split())[:300]}")


def _incomplete(folder: Path, max_model_len: int) -> str:
    """Return in words what transformers would load without an error, though it is no complete model. Empty if all is
    well. Raises transformers' errors."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, logging

    if "quantization_config" in PreTrainedConfig.get_config_dict(folder)[0]:
        return QUANTIZED
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # suppresses a report of many lines
    logging.disable_progress_bar()
    options: dict[str, Any] = {"use_safetensors": True, "device_map": "meta"}
    try:  # names and shapes only; mismatched sizes are reported
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, report = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **options)
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    tokens, config = len(AutoTokenizer.from_pretrained(folder, trust_remote_code=False)), model.config.get_text_config()
    for what in ("mismatched", "missing", "unexpected"):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{what}_keys"])
        if names:
            return f"weights and config.json belong to different models: {len(names)} {what}, such as {names[0]}"
    if tokens > config.vocab_size:
        return f"the tokenizer knows {tokens} tokens, the policy {config.vocab_size}: they belong to different models"
    context = getattr(config, "max_position_embeddings", max_model_len)
    too_long = (
        f"it holds at most {context} tokens (max_position_embeddings): lower engine.max_model_len={max_model_len}"
    )
    return too_long if max_model_len > context else ""


def check_history(path: Path, policy: str) -> None:
    """Refuse a drafter's history with tokens that the policy does not know. Raises UserError.

    path: a history.npz that the drafter can read. policy: its config.json says how many tokens it knows.
    """
    config = Path(policy) / "config.json"
    if not config.exists():
        return
    vocabulary = json.loads(config.read_text())["vocab_size"]
    with np.load(path, allow_pickle=False) as arrays:
        largest = int(arrays["tokens"].max(initial=0))
        if "others" in arrays:  # tokens of remembered distributions (das.drafter.distributions)
            largest = max(largest, int((arrays["others"] >> 5).max(initial=0)))
    if largest >= vocabulary:
        raise UserError(
            f"drafter.warm={path} holds token {largest}, the policy knows {vocabulary}: it belongs to another policy"
        )
