"""The sizes of policies; and policies of a given shape with random weights, for measurements in which the text comes
from a recording."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.policies import cached_folder
from experiments.run.errors import UserError

CONTEXT = 32768  # the largest number of positions; a large one costs nothing


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen3, by the names of its config. vocabulary: number of tokens; None for as many as the recording
    needs."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int | None = None

    @property
    def dtype(self) -> str:
        """The default type of the weights, as torch names it. Large shapes do not get float32, in which they are too
        slow."""
        return "float32" if self.hidden_size < 1024 else "bfloat16"


SHAPES = {
    "tiny": Shape(64, 2, 2, 1, 32, 96),  # for tests
    "30m": Shape(384, 10, 6, 3, 64, 1152),
    "100m": Shape(640, 16, 10, 5, 64, 1920),
    "0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151936),  # Qwen3-0.6B
    "1.7b": Shape(2048, 28, 16, 8, 128, 6144, 151936),  # Qwen3-1.7B
    "7b": Shape(3584, 28, 28, 4, 128, 18944, 152064),  # DeepSeek-R1-Distill-Qwen-7B's sizes, in Qwen3's architecture
    "8b_thin": Shape(4096, 4, 32, 8, 128, 12288, 151936),  # Qwen3-8B's width, and so its kernels, in four layers
    "8b": Shape(4096, 36, 32, 8, 128, 12288, 151936),  # Qwen3-8B
}


def shape_of(name: str) -> Shape:
    """Return the shape of this name. Raises UserError if the name is unknown."""
    if name not in SHAPES:
        raise UserError(f"shape={name}: choose one of {', '.join(SHAPES)}")
    return SHAPES[name]


def random_policy(name: str, vocabulary: int, dtype: str, cache: Path) -> Path:
    """Return the folder of a policy with random weights of this shape. Makes the policy if `cache` does not hold it.

    vocabulary: number of tokens. dtype: torch's name of the weights' type, such as "float32". The folder has no
    tokenizer, because prompts and responses are token ids.
    """

    def write(folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        config = qwen3_config(shape_of(name), vocabulary)
        AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)

    return cached_folder(cache / f"random-{name}-{vocabulary}-{dtype}", write)


def weightless_policy(name: str, vocabulary: int, dtype: str, cache: Path) -> Path:
    """Return the folder of a policy of this shape without weights. vLLM makes them on the device (load_format="dummy").

    The arguments are those of random_policy.
    """
    folder = cache / f"weightless-{name}-{vocabulary}-{dtype}"
    config = qwen3_config(shape_of(name), vocabulary, architectures=["Qwen3ForCausalLM"], dtype=dtype)
    config.save_pretrained(folder)
    return folder


def qwen3_config(shape: Shape, vocabulary: int, positions: int = CONTEXT, **more: Any) -> Any:
    """Return transformers' config of a Qwen3 of this shape. more: further settings of it."""
    from transformers import Qwen3Config

    return Qwen3Config(
        **{name: value for name, value in vars(shape).items() if name != "vocabulary"},
        vocab_size=vocabulary,
        max_position_embeddings=positions,
        tie_word_embeddings=shape.hidden_size <= 2560,  # Qwen3 ties the embeddings in models of up to 4B
        **more,
    )
