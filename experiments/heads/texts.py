"""HeadTexts: hooks that copy the training data of a drafter from the policy's own forward passes.

A training step computes hidden states and the policy's distribution anyway. The hooks copy both for a sample of the
responses. They detach the copies and draw from a generator of their own, so no bit of the policy's training changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

IGNORED = -100  # label of a token outside the response


@dataclass(frozen=True)
class HeadText:
    """A text that a drafter learns from: a prompt, the policy's response, and the policy's tensors for both."""

    tokens: torch.Tensor  # [tokens] ids
    hidden: torch.Tensor  # [tokens, aux layers * hidden size]
    logits: torch.Tensor  # the policy's, for the token after each response token: [response tokens, vocabulary]
    prompt: int  # number of tokens of the prompt


class HeadTexts:
    """Copies texts from the forward passes of `model` that get labels. TRL passes a label for each response token."""

    def __init__(self, model: Any, aux_layers: Sequence[int], share: float, seed: int, training_only: bool):
        """model: the policy, a model of transformers. share: the share of responses that is copied; each step draws
        other responses. training_only: copy only from passes that a backward pass will follow.

        Raises ValueError for a model without a list of decoder layers and a last norm.
        """
        decoder, self._lm_head = model.get_decoder(), model.get_output_embeddings()
        if not hasattr(decoder, "layers") or not hasattr(decoder, "norm") or self._lm_head is None:
            raise ValueError(
                f"a {type(model).__name__} has no decoder layers, last norm and lm_head that a drafter could learn from"
            )
        self.share, self._seed, self._training_only = share, seed, training_only
        self._aux_layers = tuple(aux_layers)
        self._texts: list[HeadText] = []
        self._rng = np.random.default_rng((seed, 0))
        self._rows: list[int] = []  # rows that are copied in the running pass; empty outside of a pass
        self._seen: dict[int | str, torch.Tensor] = {}  # tensors that the hooks of the running pass copied
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            *(decoder.layers[layer - 1].register_forward_hook(self._copy(layer)) for layer in self._aux_layers),
            decoder.norm.register_forward_hook(self._copy("last")),
            model.register_forward_hook(self._end, with_kwargs=True),
        ]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def begin_step(self, step: int) -> None:
        """Begin training step `step`. Only the number of the step decides which of its texts are copied."""
        self._rng = np.random.default_rng((self._seed, step))

    def take(self) -> list[HeadText]:
        """Returns the texts that were copied since the last call."""
        texts, self._texts = self._texts, []
        return texts

    def _begin(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        labels = kwargs.get("labels")
        if labels is None or (self._training_only and not torch.is_grad_enabled()):
            return
        self._rows = (self._rng.random(len(labels)) < self.share).nonzero()[0].tolist()

    def _copy(self, name: int | str) -> Any:
        def copy(module: Any, args: Any, output: Any) -> None:
            if self._rows:
                hidden = output[0] if isinstance(output, tuple) else output
                self._seen[name] = hidden.detach()[self._rows]

        return copy

    def _end(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        rows, self._rows = self._rows, []
        for place, row in enumerate(rows):
            kept = kwargs["attention_mask"][row].bool()
            tokens = kwargs["input_ids"][row][kept]
            responses = (kwargs["labels"][row][kept] != IGNORED).nonzero()
            if not len(responses) or int(responses[0]) == 0:
                continue
            prompt = int(responses[0])
            last = self._seen["last"][place][kept][prompt:]
            with torch.no_grad():
                logits = functional.linear(last, self._lm_head.weight, self._lm_head.bias).float()
            hidden = torch.cat([self._seen[layer][place][kept].float() for layer in self._aux_layers], -1)
            self._texts.append(HeadText(tokens.clone(), hidden, logits, prompt))
        self._seen = {}
