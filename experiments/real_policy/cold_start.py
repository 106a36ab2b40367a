"""Cold start: teach SmolLM2 to solve word problems by supervised fine-tuning on worked solutions.

The recipe is that of DeepSeek-R1: without a cold start the policy solves next to nothing, and no reward moves. It takes
some 10 minutes on two cores, and the result is kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from experiments.cache import cached_folder
from experiments.real_policy.words import make_word_problems, worked_solution
from experiments.small_policy.train import IGNORED, Example, collate, make_batches

_POSITIONS = 512  # positions whose logits are held at once; each position has 49,152
_LEAST_TOKENS = 200  # mean length of question and solution; no sample of texts has a smaller one
_REPORT_EVERY = 5  # optimizer steps

Progress = Callable[[str], None]


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
    solutions = tokenizer([solution + tokenizer.eos_token for _, solution in texts], add_special_tokens=False).input_ids
    return [
        Example(prompt + solution, [IGNORED] * len(prompt) + solution)
        for prompt, solution in zip(tokenizer(prompts, add_special_tokens=False).input_ids, solutions, strict=True)
    ]


def _train(policy: Path, texts: list[tuple[str, str]], settings: ColdStart, folder: Path, progress: Progress) -> None:
    """Train the policy on the texts, and write it into `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        policy, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    rng = random.Random(f"batches/{settings.seed}")
    batches = make_batches(encode(texts, tokenizer), settings.tokens_per_step, rng)[: settings.steps]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, settings))
    progress(f"cold start of SmolLM2: {settings.steps} steps, some 10 minutes on two cores; done once")
    began = time.perf_counter()
    model.train()
    for step, batch in enumerate(batches, start=1):
        loss = backward(model, *collate(batch, tokenizer.pad_token_id))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % _REPORT_EVERY == 0:
            left = int((time.perf_counter() - began) / step * (settings.steps - step))
            progress(f"cold start: step {step} of {settings.steps}, loss {loss:.3f}, ETA {left // 60}:{left % 60:02d}")
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _rate_factor(step: int, settings: ColdStart) -> float:
    """Return the factor on the learning rate: linear warm-up, then linear decay to 10 %."""
    return min(1.0, (step + 1) / settings.warmup_steps) * (1 - 0.9 * step / settings.steps)


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
