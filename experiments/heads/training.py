"""Train a draft head on texts of the policy: before any run, or during a run, after each training step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, TrainerCallback

from das.general import ranks
from experiments.digests import digest
from experiments.heads.eagle3 import IGNORED, Eagle3Head, HeadText, HeadTexts, new_head, shape_for, tokens_per_pass
from experiments.run.errors import TrainingDiverged


class _NoBfloat16(TorchFunctionMode):
    """Inside it, `tensor.bfloat16()` is a copy in the tensor's own type."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


class Muon(torch.optim.Muon):
    """torch's Muon. Where a CPU lacks AVX-512 it orthogonalizes its updates in their own type.

    torch orthogonalizes in bfloat16. Without AVX-512 its product of two such matrices takes some 10 times as long as in
    float32.
    """

    def step(self, closure: Any = None) -> Any:
        """As torch's."""
        on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
        if not on_cpu or "AVX512" in torch.backends.cpu.get_cpu_capability():
            return super().step(closure)
        with _NoBfloat16():
            return super().step(closure)


# ---- learning ----

STATE = "head.pt"


@dataclass(frozen=True)
class HeadOptions:
    """Options of a head's training."""

    depth: int = 3  # number of successive drafted tokens in the loss
    matrix_learning_rate: float = 0.02  # learning rate of Muon, for the matrices
    other_learning_rate: float = 3e-3  # of AdamW, for norms, biases and lm_head
    batch: int = 2  # texts for each optimizer step


class HeadLearner:
    """A head with the optimizers that train it."""

    def __init__(self, head: Eagle3Head, options: HeadOptions):
        self.head, self.options = head, options
        matrices = head.matrices()
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in head.parameters() if id(parameter) not in chosen]
        self._optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=options.matrix_learning_rate, weight_decay=0.0),
            torch.optim.AdamW(others, lr=options.other_learning_rate, weight_decay=0.0),
        ]
        self._rates = [options.matrix_learning_rate, options.other_learning_rate]

    def learn(self, texts: Sequence[HeadText], embedding: torch.Tensor, factor: float = 1.0) -> float | None:
        """Train once on each text. Returns the mean loss before each optimizer step, None if no text allows a draft.

        embedding: the policy's, [vocabulary, hidden size]. factor: multiplies the learning rates.
        Raises TrainingDiverged for a loss that is not finite.
        """
        for optimizer, rate in zip(self._optimizers, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        losses: list[float] = []
        with torch.enable_grad():
            for first in range(0, len(texts), self.options.batch):
                batch = texts[first : first + self.options.batch]
                found = [self.head.loss(text, embedding, self.options.depth) for text in batch]
                usable = [loss for loss in found if loss is not None]
                if not usable:
                    continue
                loss = torch.stack(usable).mean()
                losses.append(float(loss.detach()))
                if not np.isfinite(losses[-1]):
                    raise TrainingDiverged(f"the drafter's loss is {losses[-1]:g}: lower its learning rates")
                loss.backward()
                for optimizer in self._optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        return float(np.mean(losses)) if losses else None

    def warm_up(
        self,
        texts: Sequence[HeadText],
        embedding: torch.Tensor,
        epochs: int,
        seed: int,
        note: Callable[[str], None] = lambda line: None,
    ) -> list[float]:
        """Train on all texts `epochs` times, in random order. Learning rates fall to 5 % of their values. Returns the
        mean loss of each epoch.

        note: called with a line after each epoch.
        """
        rng = np.random.default_rng(seed)
        batch = self.options.batch
        total, done, means = epochs * len(texts), 0, []
        for epoch in range(epochs):
            order = rng.permutation(len(texts))
            losses = []
            for first in range(0, len(texts), batch):
                chosen = [texts[index] for index in order[first : first + batch]]
                loss = self.learn(chosen, embedding, factor=max(0.05, 1 - done / total))
                done += len(chosen)
                losses += [] if loss is None else [loss]
            means.append(float(np.mean(losses)))
            note(f"draft head: epoch {epoch + 1} of {epochs}, loss {means[-1]:.3f}")
        return means

    def save(self, folder: Path) -> None:
        """Write weights and optimizer states into a checkpoint."""
        optimizers = [optimizer.state_dict() for optimizer in self._optimizers]
        torch.save({"head": self.head.state_dict(), "optimizers": optimizers}, folder / STATE)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        state = torch.load(folder / STATE, weights_only=True)
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


class OnlineHead(TrainerCallback):
    """Trains a head beside the policy, after each step, on a sample of the step's texts.

    The trainer's backend loads `tensors()` into the engine with every weight sync (SpeculativeGeneration.head).
    """

    def __init__(self, head: Eagle3Head, options: HeadOptions, model: Any, share: float, seed: int):
        """model: the policy that is trained. share: the share of each step's responses to learn from, above 0.

        Raises ValueError with a one-line message if the policy's hidden states cannot be read or several processes
        train.
        """
        if ranks.count() > 1:
            raise ValueError("a drafter learns in one process: set engine.processes=1, or take one that is frozen")
        self._learner = HeadLearner(head, options)
        self._model = model
        self._texts = HeadTexts(model, head.shape.aux_layers, share, seed, training_only=True)
        self._row: dict[str, Any] = {"head_train_s": 0.0, "head_loss": None, "head_texts": 0}  # of the last step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that a training step begins."""
        self._texts.begin_step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Train on the step's texts. The policy's optimizer has just stepped."""
        start = time.perf_counter()
        texts = self._texts.take()
        loss = self._learner.learn(texts, self._model.get_input_embeddings().weight.detach().float())
        self._row = {"head_train_s": time.perf_counter() - start, "head_loss": loss, "head_texts": len(texts)}

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the head's weights, under the names that the engine loads."""
        return [(name, value.detach()) for name, value in self._learner.head.named_parameters()]

    def digest(self) -> str:
        """Returns a digest of the weights."""
        return digest(*(value.float().cpu().numpy() for _, value in sorted(self.tensors())))

    def row(self) -> dict[str, Any]:
        """Returns the head's metrics of the last step."""
        return self._row

    def save(self, folder: Path) -> None:
        """Write the head's part of a checkpoint."""
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        self._learner.load(folder)


# ---- before any run ----

AT_ONCE = 128  # number of responses that are sampled together
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
        responses: list[list[int]] = []
        for first in range(0, len(warm_up.prompts), AT_ONCE):
            prompts = warm_up.prompts[first : first + AT_ONCE]
            responses += generated(model, prompts, warm_up.max_tokens, temperature=warm_up.temperature)
            note(f"draft head: {len(responses)} of {len(warm_up.prompts)} responses are sampled")
    texts = texts_of(model, shape.aux_layers, warm_up.prompts, responses)
    sampled_s = time.perf_counter() - start
    held_out, learned = texts[::HELD_OUT], [text for place, text in enumerate(texts) if place % HELD_OUT]
    if not learned:
        raise ValueError(f"eagle3: {len(texts)} of {len(responses)} responses can be learned from: ask for more")
    embedding = model.get_input_embeddings().weight.detach()
    head = new_head(shape, model.get_output_embeddings().weight, model.get_decoder().norm.weight, warm_up.seed)
    head.to(device)
    losses = HeadLearner(head, warm_up.options).warm_up(learned, embedding, warm_up.epochs, warm_up.seed, note)
    report = {
        "responses": len(learned),
        "tokens": sum(len(text.logits) for text in learned),
        "losses": losses,
        "tokens_per_pass": tokens_per_pass(head, held_out, embedding, warm_up.options.depth),
        "sampled_s": sampled_s,
        "trained_s": time.perf_counter() - start - sampled_s,
    }
    return head.cpu(), report


@torch.no_grad()
def generated(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int, **options: Any) -> list[list[int]]:
    """Sample a response of a model to each prompt, as token ids, in one batch. It draws from torch's random state.
    options: of the model's `generate`."""
    width, end = max(map(len, prompts)), model.generation_config.eos_token_id
    ids, mask = torch.zeros(2, len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
    inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    plain = {"do_sample": True, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "max_new_tokens": max_tokens}
    rows = model.generate(**inputs, **plain, **options)[:, width:].tolist()
    ends = set(end if isinstance(end, list) else [end])
    return [row[: next((at + 1 for at, token in enumerate(row) if token in ends), len(row))] for row in rows]


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
