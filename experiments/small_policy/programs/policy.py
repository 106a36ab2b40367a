"""Build the small policy that writes programs: the arithmetic policy, trained for another half a minute."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.cache import cached_folder
from experiments.small_policy.arithmetic import DEFAULT_HABITS, DEFAULT_MIX
from experiments.small_policy.corpus import collate, encode_solutions, make_batches
from experiments.small_policy.programs.task import make_program_problems, worked_program

_STEPS = 160  # optimizer steps
_TOKENS = 1024  # padded tokens of a step
_RATE = 1e-3  # AdamW's learning rate at the start; it decays linearly to 5 % of this
_TEXTS = _STEPS * _TOKENS // 64  # enough for all steps, as every question with its solution has more than 64 tokens
# The habits of the arithmetic policy, with fewer passes because lines of code are longer.
_HABITS = replace(DEFAULT_HABITS, check_again=0.4, max_passes=5)


def _key(base: Path, steps: int) -> str:
    """Return a hash of the base policy's name, of the number of optimizer steps, and of the code of this folder."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code + f"{base.name} {steps} {torch.__version__}".encode()).hexdigest()[:16]


def build_programs_policy(base: Path, cache_dir: Path, progress: Callable[[str], None], effort: float = 1.0) -> Path:
    """Return the policy's directory, in Hugging Face format.

    If the cache lacks the policy, it is trained from the policy in `base`. effort: the share of the optimizer steps.
    """
    steps = max(1, round(effort * _STEPS))

    def write(folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, trust_remote_code=False)
        rng = random.Random("programs")
        problems = make_program_problems(_TEXTS, 0, DEFAULT_MIX)
        pairs = [(problem.question, worked_program(problem, rng, _HABITS)) for problem in problems]
        optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        model.train()
        batches = make_batches(encode_solutions(pairs, tokenizer), _TOKENS, rng)[:steps]
        for step, batch in enumerate(batches, start=1):
            optimizer.param_groups[0]["lr"] = _RATE * max(0.05, 1 - step / len(batches))
            ids, labels = collate(batch, tokenizer.pad_token_id)
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % max(1, len(batches) // 4) == 0:
                progress(f"programs policy: step {step} of {len(batches)}, loss {loss.item():.3f}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return cached_folder(cache_dir / f"programs-{_key(base, steps)}", write)
