"""Read and put back the MTP layers (multi-token prediction) in the folder of a policy like MiMo.

transformers has no class for such a policy. It loads and trains the policy as a Qwen2, and saves it as a Qwen2 without
the layers. So the layers have a file of their own beside the policy's weights, and `put_back` completes a folder that
transformers saved.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from das.general.files import write_text
from das.models.head_files import CONFIG

WEIGHTS = "mtp.safetensors"
LAYERS = "model.mtp_layers."  # the names of all weights of MTP layers begin with this
ARCHITECTURE = "MiMoForCausalLM"
Tensors = list[tuple[str, torch.Tensor]]


def is_mimo(policy: Path) -> bool:
    """Returns whether a folder holds a policy like MiMo, whose MTP layers transformers leaves out."""
    file = policy / CONFIG
    return file.is_file() and json.loads(file.read_text()).get("architectures") == [ARCHITECTURE]


def mtp_tensors(policy: Path) -> Tensors:
    """Returns the weights of the MTP layers in a policy's folder, under the names of its files."""
    found: Tensors = []
    for file in sorted(policy.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            names = [name for name in weights.keys() if name.startswith(LAYERS)]  # noqa: SIM118  it is no dict
            found += [(name, weights.get_tensor(name)) for name in names]
    return found


def put_back(saved: Path, tensors: Tensors) -> None:
    """Add the MTP layers to a folder in which transformers saved the policy without them, so that vLLM can draft with
    them.

    saved: a folder with the config.json and model.safetensors of a Qwen2. transformers can still load it afterwards.
    tensors: the layers' weights, under the names of MiMo's files.
    """
    layers = {name.removeprefix(LAYERS).split(".")[0] for name, _ in tensors}
    config = json.loads((saved / CONFIG).read_text())
    config |= {"architectures": [ARCHITECTURE], "num_nextn_predict_layers": len(layers)}
    write_text(saved / CONFIG, json.dumps(config, indent=1))
    save_file({name: value.contiguous() for name, value in tensors}, saved / WEIGHTS, {"format": "pt"})
