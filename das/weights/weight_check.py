"""The weight check: after each sync, the engine must hold the trainer's weights, bit for bit, and nothing older.

Every sync compares a sample of the trainer's tensors with what the engine holds and computes with
(das/weights/loaded_weights.py), and checks that the prefix cache is empty. Ranks exchange the result: if one finds an
error, all stop.

A second, coarse check compares log-probs of a few tokens. It finds errors that the comparison cannot see: in layers
that derive other tensors from their weights when the engine starts (experts, latent attention), and in kernels that
compute something wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from das import ranks
from das.errors import EngineError, WeightSyncError, reason_of
from das.verify.admission import LIMIT_KEY
from das.weights.loaded_weights import cached_blocks

# Engine and trainer add the same numbers in different order. In float32 the largest difference in 50 steps was 3e-4;
# bf16 rounds a thousand times coarser, and a rare token may then differ by more than 0.5. Tokens of a broken engine are
# far off.
LOGPROB_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 2.0, torch.float16: 0.5}
PROBE = range(8, 24)  # prompt of the coarse check; any tokens do, as both sides see the same ones
PROBE_TOKENS = 16  # tokens that the engine samples after it


class WeightSample:
    """Copies of some of the trainer's tensors, to check a sync: one tensor in `every`, and others at the next sync."""

    def __init__(self, every: int):
        """every: one tensor in so many is checked after a sync; at least 1, else EngineError is raised."""
        if every < 1:
            raise EngineError(f"weight_check_every={every}: set it to 1 or more syncs")
        self.every = every
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._num_loaded = 0  # number of tensors that this sync has loaded so far
        self.syncs = 0  # number of syncs so far

    def watch(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass on the tensors that a sync loads, as they are, and keep the sample.

        TRL takes merged LoRA weights apart again and frees gathered ones, so the sample is a copy. It is kept on the
        host, to spare the GPU's memory.
        """
        for index, (name, tensor) in enumerate(named_tensors):
            if (index + self.syncs) % self.every == 0:
                self._tensors.append((name, tensor.detach().to("cpu", copy=True)))
            self._num_loaded += 1
            yield name, tensor

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Choose the sample, by name, for a sync that loads these tensors into another process. The next sync gets
        another sample.
        """
        sample = [name for index, name in enumerate(names) if (index + self.syncs) % self.every == 0]
        self.syncs += 1
        return sample

    def take(self) -> tuple[list[tuple[str, torch.Tensor]], int]:
        """Return the sample, and how many tensors the sync loaded. The next sync gets another sample."""
        tensors, num_loaded = self._tensors, self._num_loaded
        self._tensors, self._num_loaded, self.syncs = [], 0, self.syncs + 1
        return tensors, num_loaded

    def problem(self, llm: Any) -> str:
        """Returns, in words, the problem that the engine has after this sync; empty if there is none."""
        tensors, num_loaded = self.take()
        if not num_loaded:
            return "the new weights did not reach the engine: none was loaded"
        for lost in llm.collective_rpc("das_lost_weights", args=(tensors, self.syncs)):
            if lost:
                return f"the new weights did not reach the engine: {lost}"
        if blocks := cached_blocks(llm):
            return (
                f"the engine's prefix cache holds {blocks} blocks of older weights: end all requests before the next "
                "training step, or set enable_prefix_caching to False"
            )
        return ""


def logprob_difference(model: Any, engine_generate: Callable[..., Any], seed: int) -> float:
    """Returns the largest |log p(engine) - log p(trainer)| over PROBE_TOKENS tokens that the engine samples after
    PROBE.

    model: the trainer's; neither its mode nor any random state is changed. engine_generate: `llm.generate` of vLLM.
    """
    from vllm import SamplingParams

    prompt = list(PROBE)
    params = SamplingParams(
        temperature=1.0, max_tokens=PROBE_TOKENS, logprobs=0, seed=seed, detokenize=False, extra_args={LIMIT_KEY: 0}
    )
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), evaluating(model), torch.no_grad():
        output = engine_generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].outputs[0]
        tokens = list(output.token_ids)
        logits_T_V = model(input_ids=torch.tensor([[*prompt, *tokens]], device=device)).logits[0, len(prompt) - 1 : -1]
    engine_T = torch.tensor([entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)])
    chosen = torch.tensor(tokens, device=device)[:, None]
    trainer_T = logits_T_V.float().log_softmax(-1).gather(-1, chosen)[:, 0].cpu()
    return float((engine_T - trainer_T).abs().max())


def trainer_logprobs(model: Any) -> np.ndarray:
    """Returns the log-probs that the trainer's model gives to all tokens of PROBE except the first. Its mode is not
    changed."""
    tokens = torch.tensor([[*PROBE]], device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad():
        logits_T_V = model(input_ids=tokens).logits[0, :-1]
    logprobs: np.ndarray = logits_T_V.float().log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].cpu().numpy()
    return logprobs


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Inside the `with` block, the model is in evaluation mode, without dropout. Afterwards each module has its former
    mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def logprob_problem(difference: float, dtype: torch.dtype) -> str:
    """Returns an error message if `difference` is larger than rounding in the engine's `dtype` can be; else empty."""
    if difference <= LOGPROB_TOLERANCE[dtype]:
        return ""
    return (
        f"engine and trainer disagree on log-probs by {difference:.3g} (allowed {LOGPROB_TOLERANCE[dtype]:g}): the "
        "engine computes something else with these weights"
    )


def check_together(check: Callable[[], str], step: int) -> None:
    """Run `check` on every rank. If it returns a problem or raises on any rank, raise WeightSyncError on all ranks.

    All ranks must call it. If there is only one rank, an error that `check` raises is passed on unchanged.
    """
    try:
        problem = check()
    except Exception as error:
        if ranks.count() == 1:
            raise
        problem = f"{type(error).__name__}: {reason_of(error)}"
    for rank, theirs in enumerate(ranks.gather(problem)):
        if theirs:
            where = f" (rank {rank})" if ranks.count() > 1 else ""
            raise WeightSyncError(f"step {step}: {theirs}{where}")
