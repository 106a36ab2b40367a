"""Checks of draft heads on disk, before an engine loads them: EAGLE-3 heads and MTP layers.

A head of EAGLE-3 belongs to one policy. If the head of another policy has the same shapes, vLLM loads it and drafts
nonsense; with other shapes, vLLM fails in the middle of a pass. An MTP layer was trained with the policy and lies in
the policy's own folder; vLLM's method `mtp` drafts with it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
DEEPEST = 7  # the most drafted tokens with which heads have been measured
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")  # keys in config.json


def read_head(folder: Path) -> dict[str, Any]:
    """Returns a head's config. Raises ValueError with a one-line message if the folder holds no EAGLE-3 head."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        architecture = str(config["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"head {folder}: {CONFIG} is missing or damaged ({type(error).__name__})") from None
    if "Eagle3" not in architecture:
        raise ValueError(f"head {folder}: it holds a {architecture}, and no EAGLE-3 head")
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"head {folder}: {WEIGHTS} is missing")
    return config


def aux_layers_of(head: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the policy's layers whose hidden states the head reads; () if its config leaves the choice to vLLM."""
    listed = head.get("eagle_aux_hidden_state_layer_ids")
    listed = listed or (head.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(listed or ())


def head_problem(folder: Path, policy: Path | None) -> str:
    """Returns one line that says why the head cannot draft for the policy; empty if no reason is known.

    policy: the policy's folder. Nothing is checked for a hub id, which is no folder, or for None: not made yet.
    """
    try:
        head = read_head(folder)
    except ValueError as error:
        return str(error)
    if policy is None or not (policy / CONFIG).is_file():
        return ""
    config = json.loads((policy / CONFIG).read_text())
    for key, what in (("hidden_size", "hidden size"), ("vocab_size", "vocabulary")):
        if head.get(key) != config[key]:
            return f"head {folder} has {what} {head.get(key)}, the policy {config[key]}: it belongs to another policy"
    layers, depth = aux_layers_of(head), config["num_hidden_layers"]
    if not layers:
        layers = (2, depth // 2, depth - 3)  # vLLM's own choice
    if list(layers) != sorted(set(layers)) or layers[0] < 1 or layers[-1] > depth:
        return (
            f"head {folder} reads the policy's layers {', '.join(map(str, layers))}, and the policy has {depth}: it "
            "belongs to another policy"
        )
    known = head.get("das_tokenizer")
    if known is not None and known != tokenizer_digest(policy):
        return f"head {folder} was trained with another tokenizer than the policy's: it belongs to another policy"
    return ""


def tokenizer_digest(policy: Path) -> str | None:
    """Returns a digest of a policy's tokenizer; None if there is no tokenizer.json."""
    file = policy / TOKENIZER
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None


def depth_problem(depth: Any, method: str = "eagle3") -> str:
    """Returns one line that says why drafts of a method cannot have `depth` tokens; empty if they can."""
    if isinstance(depth, int) and not isinstance(depth, bool) and 1 <= depth <= DEEPEST:
        return ""
    return f"{method} drafts 1 to {DEEPEST} tokens a pass, not {depth}"


def mtp_problem(policy: str, tokens: Any) -> str:
    """Returns one line that says why the policy cannot draft `tokens` tokens a pass with an MTP layer; empty if no
    reason is known.

    policy: the policy's folder. For a hub id, which is no folder, and for "" only `tokens` is checked.
    """
    if problem := depth_problem(tokens, "mtp"):
        return problem
    file = Path(policy) / CONFIG
    if not policy or not file.is_file():
        return ""
    config = json.loads(file.read_text())
    layers = max(int(config.get(key) or 0) for key in MTP_LAYERS)
    if not layers:
        return f"mtp: the policy {policy} has no MTP layer: take another method, or a policy that was trained with one"
    if tokens > layers and tokens % layers:
        return f"mtp drafts a multiple of the policy's {layers} MTP layers, or fewer, not {tokens}"
    return ""
