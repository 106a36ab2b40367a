"""Refuse, before any work is done, a policy that cannot be trained. No code that comes with a policy is run."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from das.general.errors import reason_of
from das.trl.support import QUANTIZED
from experiments.run.errors import UserError


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
