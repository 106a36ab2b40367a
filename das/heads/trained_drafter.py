"""The base class of drafters that learn beside the policy: a head (eagle3.py), an MTP layer (mtp.py) or a smaller model
(draft_model.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class HeadText:
    """A text that a drafter learns from: a prompt, the policy's response, and the policy's tensors for both."""

    tokens: torch.Tensor  # [tokens] ids
    hidden: torch.Tensor  # [tokens, aux layers * hidden size]
    logits: torch.Tensor  # the policy's, for the token after each response token: [response tokens, vocabulary]
    prompt: int  # number of tokens of the prompt


class TrainedDrafter(nn.Module):
    """A drafter that learns the policy's distribution. Its parameters have the names that the engine loads."""

    aux_layers: Sequence[int] = ()  # the layers of the policy whose hidden states are read, counted from 1

    def matrices(self) -> list[nn.Parameter]:
        """Returns the weight matrices that Muon trains: all except the embedding and lm_head."""
        raise NotImplementedError

    def loss(self, text: HeadText, embedding: torch.Tensor, depth: int) -> torch.Tensor | None:
        """Returns the mean KL divergence from the policy's distribution to the drafter's, in nats, over positions of
        the response; None if the response is too short for a draft.

        embedding: the policy's embedding [vocabulary, hidden size]. depth: the number of successive drafted tokens that
        a drafter computes for each position if it reads hidden states.
        """
        raise NotImplementedError

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the weights, under the names that the engine loads."""
        return [(name, value.detach()) for name, value in self.named_parameters()]
