"""Does an engine compute what the trainer's model computes?"""

from collections.abc import Callable
from typing import Any

import torch
from vllm import SamplingParams

PROMPT = list(range(8, 24))
TOLERANCE = 1e-2  # in float32 the largest difference in 50 steps was 3e-4


def logprob_difference(model: Any, generate: Callable[..., Any]) -> float:
    """Returns the largest |log p(engine) - log p(model)| over 16 tokens that the engine samples. generate: of vLLM."""
    params = SamplingParams(max_tokens=16, logprobs=0, seed=1, detokenize=False)
    (output,) = generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0].outputs
    tokens = torch.tensor(output.token_ids)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([[*PROMPT, *output.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    ours = logits.float().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    theirs = [of_place[token].logprob for of_place, token in zip(output.logprobs, output.token_ids, strict=True)]
    return float((torch.tensor(theirs) - ours).abs().max())
