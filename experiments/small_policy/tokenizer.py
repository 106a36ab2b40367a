"""The tokenizer of the small policy: byte-level BPE trained on the task's texts. Short numbers are one token."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

# A piece is a word with its leading space, a number of at most %d digits, or a run of other characters. Merges
# cannot cross the borders of pieces, so the tokens of a number do not depend on the text around it.
_PIECES = r"\d{1,%d}| ?\p{L}+|[^\d\p{L}]+?(?=$|\d| ?\p{L})"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{%- else -%}<|user|>{{ message['content'] }}<|end|>{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 384, digits: int = 1) -> PreTrainedTokenizerFast:
    """Learn merges from ``texts`` and return a tokenizer with a chat template. Decoding inverts encoding for any text.

    The vocabulary contains all 256 byte symbols, so no text is unknown. It stays smaller than ``vocab_size`` if the
    texts offer fewer merges. digits: the most digits that one token may hold; with 1, every digit is a token.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.padding_side = "left"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
