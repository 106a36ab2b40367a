"""Train a new EAGLE-3 head on responses that the policy samples, before any run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from experiments.heads.eagle3 import Eagle3Head, agreement, new_head, shape_for, tokens_per_pass
from experiments.heads.texts import IGNORED, HeadText, HeadTexts
from experiments.heads.training import HeadLearner, HeadOptions

AT_ONCE = 128  # number of responses that are sampled together
NOTE_S = 10.0  # seconds between two lines about the progress of sampling
HELD_OUT = 8  # one response in so many is held out from training, to evaluate the head


@dataclass(frozen=True)
class WarmUp:
    """Settings for the training of a new head."""

    prompts: Sequence[Sequence[int]]  # token ids; one response to each is sampled
    max_tokens: int  # the most tokens of a response
    temperature: float
    epochs: int
    options: HeadOptions
    seed: int


class _Progress(StoppingCriteria):
    """Reports how long the responses are so far. transformers calls this object after each token. It stops nothing."""

    def __init__(self, note: Callable[[str], None], what: str, width: int, max_tokens: int):
        """what: names the responses that are sampled. width: number of tokens of each prompt with its padding."""
        self._note, self._what, self._width, self._max_tokens = note, what, width, max_tokens
        self._noted = time.monotonic()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        now = time.monotonic()
        if now - self._noted > NOTE_S:
            self._noted = now
            done = input_ids.shape[1] - self._width
            self._note(f"draft head: sampling {self._what}, {done} of at most {self._max_tokens} tokens")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def make_head(
    policy: Path, warm_up: WarmUp, note: Callable[[str], None] = lambda line: None
) -> tuple[Eagle3Head, dict[str, Any]]:
    """Train a head for the policy. Returns the head and a report: its tokens per pass on held-out responses, and times.

    policy: a folder. note: called with a line from time to time. No random state of the process is changed. Raises
    ValueError if the policy has no decoder layers to read, or if fewer than two responses can be used.
    """
    start = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng():
        torch.manual_seed(warm_up.seed)
        model = AutoModelForCausalLM.from_pretrained(
            policy, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        ).to(device)
        model.eval()
        shape = shape_for(model.config.get_text_config().to_dict())
        responses = sampled(model, warm_up, note)
    texts = texts_of(model, shape.aux_layers, warm_up.prompts, responses)
    sampled_s = time.perf_counter() - start
    held_out, learned = texts[::HELD_OUT], [text for place, text in enumerate(texts) if place % HELD_OUT]
    if not learned:
        raise ValueError(f"eagle3: {len(texts)} of {len(responses)} responses can be learned from: ask for more")
    embedding = model.get_input_embeddings().weight.detach()
    head = new_head(shape, model.get_output_embeddings().weight, model.get_decoder().norm.weight, warm_up.seed)
    head.to(device)
    losses = HeadLearner(head, warm_up.options).warm_up(learned, embedding, warm_up.epochs, warm_up.seed, note)
    depth = warm_up.options.depth
    report = {
        "responses": len(learned),
        "tokens": sum(len(text.logits) for text in learned),
        "losses": losses,
        "agreement": agreement(head, held_out, embedding, depth),
        "tokens_per_pass": tokens_per_pass(head, held_out, embedding, depth),
        "sampled_s": sampled_s,
        "trained_s": time.perf_counter() - start - sampled_s,
    }
    return head.cpu(), report


@torch.no_grad()
def sampled(model: Any, warm_up: WarmUp, note: Callable[[str], None]) -> list[list[int]]:
    """Sample one response of the policy to each prompt, as token ids. Sampling draws from torch's random state."""
    end = model.generation_config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])
    responses: list[list[int]] = []
    for first in range(0, len(warm_up.prompts), AT_ONCE):
        prompts = warm_up.prompts[first : first + AT_ONCE]
        ids, mask = _padded(prompts, model.device)
        what = f"responses {first + 1} to {first + len(prompts)} of {len(warm_up.prompts)}"
        generated = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=warm_up.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=warm_up.max_tokens,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([_Progress(note, what, ids.shape[1], warm_up.max_tokens)]),
        )
        for tokens in generated[:, ids.shape[1] :].tolist():
            stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
            responses.append(tokens[: stop + 1])
    return responses


def _padded(prompts: Sequence[Sequence[int]], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts' token ids and attention mask, padded on the left to equal length, both [prompts, tokens]."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


@torch.no_grad()
def texts_of(
    model: Any, aux_layers: Sequence[int], prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[HeadText]:
    """Returns the training data of a head for these responses. The policy computes it text by text."""
    texts = HeadTexts(model, aux_layers, share=1.0, seed=0, training_only=False)
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([[*prompt, *response]], device=model.device)
        labels = torch.tensor([[IGNORED] * len(prompt) + list(response)], device=model.device)
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False)
    texts.close()
    return texts.take()
