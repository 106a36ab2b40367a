"""Build the small policy that has an MTP layer: a Qwen2 of the small policy's size and text, in the form of MiMo.

The MTP layer predicts further tokens. It is trained after the other weights, on the last texts of the corpus, to
predict the distributions that the policy has there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from experiments.cache import cached_folder
from experiments.heads import mtp, unrolled
from experiments.heads.texts import HeadTexts
from experiments.heads.training import HeadLearner, HeadOptions
from experiments.small_policy import small
from experiments.small_policy.mtp.layer import MtpLayer, mtp_shape, new_mtp

_BATCHES = 120  # the layer learns from the last 120 batches of the corpus; of 3,072 padded tokens each for puzzles
_OPTIONS = HeadOptions(depth=3, batch=4)
_SMALLEST_RATE = 0.05  # the learning rates fall linearly to this share of themselves


def _key(config: small.SmallPolicyConfig) -> str:
    """Return a hash of the small policy's name and of the code that makes the layer."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(str(mtp.__file__)), Path(str(unrolled.__file__))]
    code = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(code + small.policy_key(config).encode()).hexdigest()[:16]


def as_qwen2(tokenizer: PreTrainedTokenizerFast, folder: Path) -> PreTrainedTokenizerFast:
    """Convert the tokenizer to Qwen2's class: transformers loads every tokenizer in the folder of a Qwen2 model as this
    class. The class splits numbers into digits and has one more token, so the policy must be trained with it. Writes
    files into `folder`."""
    Qwen2Config().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return loaded


def _train_layer(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: small.SmallPolicyConfig,
    progress: Callable[[str], None],
) -> MtpLayer:
    shape = mtp_shape(model.config.to_dict())
    layer = new_mtp(shape, model.model.norm.weight, config.seed)
    learner, embedding = HeadLearner(layer, _OPTIONS), model.get_input_embeddings().weight.detach()
    texts = HeadTexts(model, shape.aux_layers, share=1.0, seed=config.seed, training_only=False)
    batches = list(config.corpus.batches(config.seed, tokenizer))[-_BATCHES:]
    for done, (ids, labels) in enumerate(batches):
        with torch.no_grad():
            model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id, labels=labels, use_cache=False)
        loss = learner.learn(texts.take(), embedding, factor=max(_SMALLEST_RATE, 1 - done / len(batches)))
        if loss is not None and (done + 1) % (len(batches) // 4) == 0:
            progress(f"MTP layer: batch {done + 1} of {len(batches)}, loss {loss:.3f}")
    texts.close()
    return layer


def build_mtp_policy(config: small.SmallPolicyConfig, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the policy's directory, in the format of MiMo. If the cache lacks the policy, it is trained first."""

    def write(folder: Path) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            tokenizer = as_qwen2(config.corpus.tokenizer(config.seed), folder)
            model = Qwen2ForCausalLM(Qwen2Config(**small.sizes(config, tokenizer)))
            small.train(model, tokenizer, config, progress)
        layer = _train_layer(model, tokenizer, config, progress)
        small.save(model, tokenizer, folder)
        mtp.put_back(folder, layer.tensors())

    return cached_folder(cache_dir / f"mtp-{_key(config)}", write)
