"""Train a draft head on texts of the policy, before a run or during a run, after each training step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from das.general import ranks
from experiments.digests import digest
from experiments.heads.eagle3 import Eagle3Head
from experiments.heads.muon import Muon
from experiments.heads.texts import HeadText, HeadTexts
from experiments.run.errors import TrainingDiverged

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

    def state(self) -> dict[str, Any]:
        """Returns weights and optimizer states, in a form for torch.save."""
        return {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
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
        torch.save(self._learner.state(), folder / STATE)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        self._learner.restore(torch.load(folder / STATE, weights_only=True))
