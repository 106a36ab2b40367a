"""Policies with a layer for multi-token prediction (MTP), on disk: what an engine needs to know before it loads one.

The layer was trained with the policy and lies in the policy's own folder. vLLM drafts with it by its method `mtp`.
"""

import json
from pathlib import Path
from typing import Any

CONFIG = "config.json"
DEEPEST = 7  # drafted tokens for which MTP layers have been measured
LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")  # how configs count MTP layers


def mtp_problem(policy: str, tokens: Any) -> str:
    """Why the policy cannot draft `tokens` tokens a pass with an MTP layer, in one line; empty if nothing speaks
    against it.

    policy: its folder. Of a hub id, which is no folder, and of "" nothing is known here.
    """
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= DEEPEST:
        return f"mtp drafts 1 to {DEEPEST} tokens a pass, not {tokens}"
    file = Path(policy) / CONFIG
    if not policy or not file.is_file():
        return ""
    config = json.loads(file.read_text())
    layers = max(int(config.get(key) or 0) for key in LAYERS)
    if not layers:
        return f"mtp: the policy {policy} has no MTP layer: take another method, or a policy that was trained with one"
    if tokens > layers and tokens % layers:
        return f"mtp drafts a multiple of the policy's {layers} MTP layers, or fewer, not {tokens}"
    return ""
