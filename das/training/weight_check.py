"""The weight check: after each sync, engine and trainer must agree on the log-probs of a few tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from das.engine.admission import LIMIT_KEY
from das.training.errors import WeightSyncError

# Engine and trainer add the same numbers in different order. In float32 the largest difference in 50 steps was 3e-4;
# bf16 rounds a thousand times coarser. A stale tensor causes a far larger difference.
LOGPROB_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.1}
PROBE_TOKENS = 16


def logprob_difference(model: Any, engine_generate: Callable[..., Any], probe: Sequence[int], seed: int) -> float:
    """The largest |log p(engine) - log p(trainer)| of PROBE_TOKENS tokens that the engine samples after `probe`.

    model: the trainer's. engine_generate: `llm.generate` of vLLM.
    """
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=1.0, max_tokens=PROBE_TOKENS, logprobs=0, seed=seed, detokenize=False, extra_args={LIMIT_KEY: 0}
    )
    output = engine_generate([{"prompt_token_ids": list(probe)}], params, use_tqdm=False)[0].outputs[0]
    tokens = list(output.token_ids)
    engine_T = torch.tensor([entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)])
    device = next(model.parameters()).device
    with torch.no_grad():
        logits_T_V = model(input_ids=torch.tensor([[*probe, *tokens]], device=device)).logits[0, len(probe) - 1 : -1]
    chosen = torch.tensor(tokens, device=device)[:, None]
    trainer_T = logits_T_V.float().log_softmax(-1).gather(-1, chosen)[:, 0].cpu()
    return float((engine_T - trainer_T).abs().max())


def require_synced(difference: float, dtype: torch.dtype, step: int) -> None:
    """Raise WeightSyncError if log-probs differ by more than rounding in the engine's `dtype` explains."""
    tolerance = LOGPROB_TOLERANCE[dtype]
    if not difference <= tolerance:
        raise WeightSyncError(
            f"step {step}: engine and trainer disagree on log-probs by {difference:.3g} (allowed {tolerance:g}): "
            "the new weights did not reach the engine"
        )
