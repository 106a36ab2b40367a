"""Refuse, before any work is done, a policy that cannot be trained. No code that comes with a policy is run."""

import json
from pathlib import Path

import numpy as np

from das.errors import reason_of
from das.trl.support import QUANTIZED
from experiments.run.errors import UserError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_policy(path: str, max_model_len: int) -> None:
    """Refuse a policy whose files are missing, damaged, or of different models. Raises UserError.

    path: a folder; a hub id is not checked. max_model_len: tokens of prompt and response that the engine must hold.
    """
    folder = Path(path)
    if not folder.is_dir():
        if folder.is_absolute() or path.startswith(".") or folder.is_symlink() or folder.exists():
            raise UserError(f"policy.path={path} does not exist, or is no folder")
        return
    if not (folder / "tokenizer_config.json").exists():
        raise UserError(f"policy.path={path} has no tokenizer (tokenizer_config.json): save it there too")
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(file.name for kind in PICKLES for file in folder.glob(kind))
        weights = f"only {pickles[0]}, a pickle, which is never opened" if pickles else "no weights"
        raise UserError(f"policy.path={path} has {weights}: save them as model.safetensors (save_pretrained does)")
    problem = _not_loadable(folder, max_model_len) or _not_finite(folder)
    if problem:
        raise UserError(f"policy.path={path}: {' '.join(problem.split())[:300]}")


def _not_loadable(folder: Path, max_model_len: int) -> str:
    """Return in words why transformers cannot load the folder as one complete model. Empty if it can."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # suppresses a report of many lines
    logging.disable_progress_bar()
    try:
        if "quantization_config" in PreTrainedConfig.get_config_dict(folder)[0]:
            return QUANTIZED
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",  # names and shapes only
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported instead
        )
        tokens = len(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    except Exception as error:  # safetensors, JSON, strict configs and tokenizers each raise errors of their own kinds
        return f"transformers cannot load it: {type(error).__name__}: {reason_of(error)}"
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    for what in ("mismatched", "missing", "unexpected"):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{what}_keys"])
        if names:
            return f"weights and config.json belong to different models: {len(names)} {what}, such as {names[0]}"
    config = model.config.get_text_config()
    vocabulary, context = config.vocab_size, getattr(config, "max_position_embeddings", max_model_len)
    if tokens > vocabulary:
        return f"the tokenizer knows {tokens} tokens, the policy {vocabulary}: they belong to different models"
    if max_model_len > context:
        return (
            f"it holds at most {context} tokens (max_position_embeddings): lower engine.max_model_len={max_model_len}"
        )
    return ""


def _not_finite(folder: Path) -> str:
    """Read all weights. If a tensor contains NaN or infinity, returns a text that names it; otherwise ""."""
    import torch
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  it is no dict and cannot be iterated
                tensor = weights.get_tensor(name)
                if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():  # NaN is both
                    return f"{name} in {file.name} holds NaN or infinity: the training that made it diverged"
    return ""


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
