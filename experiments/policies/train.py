"""Train the small policies: Qwen3s of 1.9 to 3.3 M parameters, from nothing, on worked solutions.

`python -m experiments.policies.train KIND FOLDER` trains one, in 1 to 10 minutes of one quiet core, as those in the
folder `shipped` were trained: the same machine, code and number of threads give the same bytes.

The tokenizer is byte-level BPE trained on the task's texts. Short numbers are one token.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3ForCausalLM

from das.general.files import write_text
from experiments.heads.training import Muon
from experiments.policies.problems import make_problems
from experiments.policies.shapes import Shape, qwen3_config
from experiments.policies.solutions import MANNERS, solution

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


# ---- training ----

IGNORED = -100
LONGEST = 1024  # tokens of question and solution together; the policies have no more positions
_PROBLEMS = 2500  # distinct ones in a phase; they come again with other solutions
_DRILL_LINES = 9  # of a text
_TOKENIZER_TEXTS = 1000  # of each phase
# Muon trains the matrices; AdamW trains the embedding and the norms. AdamW alone needs several times as many tokens
# before the model copies from its context at all.
_MATRIX_RATE, _OTHER_RATE = 0.02, 3e-3
_WARM_UP = 20  # optimizer steps
_THREADS = 1  # of torch, when those that ship were trained
Progress = Callable[[str], None]
Part = tuple[str, bool]  # a text, and whether the policy learns to write it


class Example(NamedTuple):
    """Token ids of one text, and its labels: the id of a token that is learned, ``IGNORED`` for any other token."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Phase:
    """A part of a training: optimizer steps, padded tokens of each, and what they teach.

    texts: a kind of MANNERS, or "drill KIND": equations of a kind of chains, of which only the results are learned.
    mix: of its problems, as make_problems takes it.
    """

    steps: int
    tokens: int
    texts: str
    mix: Mapping[Any, float] = field(default_factory=dict)

    def write(self, seed: int) -> Iterator[list[Part]]:
        """Write texts without end."""
        rng = random.Random(f"{self.texts}/{seed}")
        if self.texts.startswith("drill "):
            kind = self.texts.removeprefix("drill ")
            while True:
                yield [part for _ in range(_DRILL_LINES) for part in equation(kind, rng)]
        for problem in itertools.cycle(make_problems(self.texts.split()[0], _PROBLEMS, seed, self.mix)):
            asked = f"{USER}{problem.question}{END}{ASSISTANT}"
            yield [(asked, False), (solution(problem, rng, MANNERS[self.texts]) + END, True)]


@dataclass(frozen=True)
class Recipe:
    """How a policy is made: its phases and its sizes.

    logit_scale: factor on the trained logits, applied to the weights of the last norm. Above 1 it makes improbable
    tokens rarer. So it removes errors that are due to the short training, but it makes slips rarer too.
    """

    phases: tuple[Phase, ...]
    shape: Shape
    logit_scale: float = 1.2

    def new_model(self, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
        """Return a model with random weights."""
        ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        return Qwen3ForCausalLM(qwen3_config(self.shape, len(tokenizer), LONGEST, dtype="float32", **ends))


_CHAINS = {2: 0.20, 3: 0.36, 4: 0.20, 5: 0.10, 6: 0.07, 7: 0.04, 8: 0.03}  # long ones are rarer
_PUZZLES = {"pair": 3, "triple": 3, "walk": 2}
_OF_PUZZLES = (
    Phase(80, 1024, "drill sums"),
    Phase(200, 2048, "puzzles plain", _PUZZLES),
    Phase(380, 3072, "puzzles", _PUZZLES),
)
# Words and habits of programs are those of arithmetic. So a policy that knows arithmetic has little to learn.
_OF_PROGRAMS = (
    Phase(120, 512, "drill arithmetic"),
    Phase(110, 1024, "arithmetic plain", _CHAINS),
    Phase(160, 1024, "arithmetic", _CHAINS),
    Phase(160, 1024, "programs", _CHAINS),
)
RECIPES: Mapping[str, Recipe] = {
    "puzzles": Recipe(_OF_PUZZLES, Shape(192, 4, 3, 3, 64, 512)),
    "draft": Recipe(_OF_PUZZLES, Shape(128, 1, 2, 2, 64, 384)),  # drafts for the policy above
    "programs": Recipe(_OF_PROGRAMS, Shape(256, 4, 4, 2, 64, 768)),
}


def trained(recipe: Recipe, progress: Progress) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train a new policy. Returns it and its tokenizer."""
    tokenizer = new_tokenizer(recipe)
    batches = [
        collate(batch, tokenizer.pad_token_id)
        for index, phase in enumerate(recipe.phases)
        for batch in _batches(phase, index, tokenizer)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = recipe.new_model(tokenizer)
    named = list(model.named_parameters())
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and "embed" not in name]
    others = [parameter for name, parameter in named if parameter.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=_OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        # Linear warm-up, then linear decay to 5 %.
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / _WARM_UP) * max(0.05, 1 - step / len(batches))
        )
        for optimizer in optimizers
    ]
    model.train()
    for step, (ids, labels) in enumerate(batches, start=1):
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if step % max(1, len(batches) // 10) == 0:
            progress(f"small policy: step {step} of {len(batches)}, loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        model.model.norm.weight.mul_(recipe.logit_scale)
    return model, tokenizer


def new_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Train a tokenizer. Every number up to 99 is one token, so that the policy soon copies and compares them."""
    numbers = " ".join(map(str, range(100)))
    texts = [
        re.sub(r"<\|\w+\|>", " ", "".join(text for text, _ in parts))
        for phase in recipe.phases
        for parts in itertools.islice(phase.write(0), _TOKENIZER_TEXTS)
    ]
    return train_tokenizer([*texts, *[numbers] * len(texts)], vocab_size=512, digits=2)


def equation(kind: str, rng: random.Random) -> list[Part]:
    """Write an equation of a kind of chains. Only its result is learned."""
    (problem,) = make_problems(kind, 1, rng.randrange(2**32), {1: 1})
    start, (sign, operand) = problem.numbers
    return [(f"{start}{sign}{operand}=", False), (f"{problem.answer}\n", True)]


def encode(texts: list[list[Part]], tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Return the token ids of texts, and what is learned of them."""
    joined = [  # tokens may cross the borders of parts, but not those of what is learned
        [
            ("".join(text for text, _ in group), learned)
            for learned, group in itertools.groupby(parts, lambda part: part[1])
        ]
        for parts in texts
    ]
    encoded = iter(tokenizer([text for parts in joined for text, _ in parts], add_special_tokens=False).input_ids)
    examples = []
    for parts in joined:
        example = Example([], [])
        for _, learned in parts:
            ids = next(encoded)
            example.ids.extend(ids)
            example.labels.extend(ids if learned else [IGNORED] * len(ids))
        examples.append(example)
    return examples


def _batches(phase: Phase, seed: int, tokenizer: PreTrainedTokenizerFast) -> list[list[Example]]:
    """Return a batch for each step of a phase."""
    written, examples, tokens = phase.write(seed), [], 0
    while tokens < phase.steps * phase.tokens:
        for example in encode(list(itertools.islice(written, 100)), tokenizer):
            if len(example.ids) <= LONGEST:
                examples.append(example)
                tokens += len(example.ids)
    return make_batches(examples, phase.tokens, random.Random(f"batches/{seed}"))[: phase.steps]


def make_batches(examples: list[Example], tokens_per_step: int, rng: random.Random) -> list[list[Example]]:
    """Group examples of similar length into batches of at most ``tokens_per_step`` padded tokens, in random order."""
    batches: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: (len(example.ids), rng.random())):
        if batches[-1] and len(example.ids) * (len(batches[-1]) + 1) > tokens_per_step:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches


def collate(batch: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input ids and labels, both [batch, time], padded on the right.

    With causal attention no real position sees the padding on its right, so no attention mask is needed.
    """
    width = max(len(example.ids) for example in batch)
    ids = [example.ids + [pad] * (width - len(example.ids)) for example in batch]
    labels = [example.labels + [IGNORED] * (width - len(example.labels)) for example in batch]
    return torch.tensor(ids), torch.tensor(labels)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model and its tokenizer into `folder`, in Hugging Face format."""
    # The defaults for sampling change nothing. A default top-k would change the policy in every engine that reads it.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ship(recipe: Recipe, folder: Path, progress: Progress) -> None:
    """Train a policy, and write it as it ships: half the bytes, the same bits on every machine."""
    model, tokenizer = trained(recipe, progress)
    save(model.to(torch.bfloat16), tokenizer, folder)
    config = json.loads((folder / "config.json").read_text())
    write_text(folder / "config.json", json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")


def main(words: Sequence[str]) -> None:
    """Run the command."""
    if len(words) != 2 or words[0] not in RECIPES:
        raise SystemExit(f"error: give a kind ({', '.join(RECIPES)}) and a folder: puzzles policies/mine")
    torch.set_num_threads(_THREADS)
    ship(RECIPES[words[0]], Path(words[1]), print)


if __name__ == "__main__":
    main(sys.argv[1:])
