"""A draft model (a small language model) that learns the policy's distribution on the policy's responses."""

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from das.heads.trained_drafter import HeadText, TrainedDrafter


class DraftModel(TrainedDrafter):
    """A small language model with the same vocabulary as the policy. It reads only the text, no hidden states."""

    def __init__(self, model: PreTrainedModel):
        """model: a causal language model of transformers. It is put into evaluation mode, which has no dropout."""
        super().__init__()
        self.model = model.eval()

    def matrices(self) -> list[nn.Parameter]:
        """Returns all weight matrices except the embedding and lm_head."""
        of_vocabulary = {id(self.model.get_input_embeddings().weight), id(self.model.get_output_embeddings().weight)}
        return [value for value in self.model.parameters() if value.ndim == 2 and id(value) not in of_vocabulary]

    def loss(self, text: HeadText, embedding: torch.Tensor, depth: int) -> torch.Tensor | None:
        """See TrainedDrafter. The mean is over the response's tokens after the first one, which no drafter drafts.

        `embedding` and `depth` are not used: the model has its own embedding, and it computes each token of a draft in
        the same way.
        """
        target = text.logits[:-1].log_softmax(-1)  # nothing follows the last token
        if not len(target):
            return None
        drafted = self.model(input_ids=text.tokens[None, :-1], use_cache=False).logits[0, text.prompt :]
        total = functional.kl_div(drafted.log_softmax(-1), target, reduction="sum", log_target=True)
        return total / len(target)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the weights, under the names that the engine loads. An lm_head that is the embedding is left out."""
        return [(name, value.detach()) for name, value in self.model.named_parameters()]


def load_draft_model(folder: str) -> DraftModel:
    """Load the draft model of a folder or a hub id, in float32. Loading draws no random number."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    return DraftModel(model)
