"""Is a folder a policy that can be trained? Looked into before any work is done; no code of it is run."""

import json
from pathlib import Path

import numpy as np

from experiments.run.errors import UserError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check(path: str, max_model_len: int) -> None:
    """Refuse a policy whose parts are missing, broken, or of different models. Raises UserError.

    path: a folder; a hub id, which is no folder, is left to the hub. max_model_len: tokens the engine is to hold.
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
        found = f"only {pickles[0]}, a pickle, which is never opened: save it as" if pickles else "no weights:"
        raise UserError(f"policy.path={path} has {found} model.safetensors (save_pretrained does)")
    said = _broken(folder, max_model_len) or _not_finite(folder)
    if said:
        raise UserError(f"policy.path={path}: {' '.join(said.split())[:300]}")


def _broken(folder: Path, max_model_len: int) -> str:
    """What keeps transformers from making one whole model of the folder; empty where nothing does."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # its report of many lines
    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",  # names and shapes only
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported instead
        )
        tokens = len(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    except Exception as error:  # of every kind there is: safetensors, JSON, strict configs, plain ones of tokenizers
        return f"transformers can make no policy of it: {type(error).__name__}: {error}"
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    for what in ("mismatched", "missing", "unexpected"):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{what}_keys"])
        if names:
            return f"weights and config.json are of different models: {len(names)} {what}, such as {names[0]}"
    config = model.config.get_text_config()
    vocabulary, longest = config.vocab_size, getattr(config, "max_position_embeddings", max_model_len)
    if tokens > vocabulary:
        return f"the tokenizer knows {tokens} tokens, the policy {vocabulary}: they are of different models"
    if max_model_len > longest:
        return f"holds {longest} tokens at most (max_position_embeddings): lower engine.max_model_len={max_model_len}"
    return ""


def _not_finite(folder: Path) -> str:
    """Which weight is NaN or infinite; empty where none is. Reads all weights."""
    import torch
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  no dict: it cannot be iterated
                tensor = weights.get_tensor(name)
                if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():  # NaN is both
                    return f"{name} in {file.name} holds NaN or infinity: it comes from a run that was lost"
    return ""


def check_history(path: Path, policy: str) -> None:
    """Refuse a drafter's history with tokens that the policy does not know. Raises UserError.

    path: a history.npz that the drafter has read. policy: whose config.json says how many tokens there are.
    """
    config = Path(policy) / "config.json"
    if not config.exists():
        return
    vocabulary = json.loads(config.read_text())["vocab_size"]
    with np.load(path, allow_pickle=False) as arrays:
        most = int(arrays["tokens"].max(initial=0))
    if most >= vocabulary:
        raise UserError(f"drafter.warm={path} holds token {most}, the policy knows {vocabulary}: of another policy")
