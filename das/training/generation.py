"""TRL's generation backend on our engine: per-request seeds and problem ids, checked weight sync, measured rollouts."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.build import EngineSettings, build_engine
from das.engine.noise import splitmix64
from das.engine.proposer import PROBLEM_KEY

# Engine and trainer compute the same sums in different order: 3e-4 was the most seen in float32 over 50 steps, bf16
# rounds a thousand times coarser. A stale tensor is off by far more.
LOGPROB_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.1}
PROBE_TOKENS = 16


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


@dataclass
class Rollout:
    """One finished rollout: `responses[i]` answers prompt i. Times in seconds."""

    step: int
    problems: list[str]
    responses: list[list[int]]  # token ids
    finish_reasons: list[str]
    requests: list[dict[str, Any]]  # passes, drafted, first_s, last_s of each request
    rollout_s: float
    report: dict[str, Any]  # the meter's report

    @property
    def tokens(self) -> int:
        return sum(len(response) for response in self.responses)


def request_seed(run_seed: int, step: int, index: int, evaluation: bool = False) -> int:
    """Seed of the `index`-th request of a step: distinct for every request of a run, equal in every arm."""
    mixed = np.uint64(run_seed)
    for part in (step, index, int(evaluation)):
        mixed = splitmix64(np.array([mixed ^ np.uint64(part)], np.uint64))[0]
    return int(mixed >> np.uint64(2))


class SpeculativeGeneration(VLLMGeneration):
    """Colocated vLLM with keyed verification and the arm's drafts. Set `problems` before each `generate`."""

    def __init__(
        self,
        *args: Any,
        engine: EngineSettings,
        run_seed: int,
        clock: Callable[[int], int],
        after_rollout: Callable[[], None],
        **kwargs: Any,
    ):
        """engine: how to build it. clock: training step -> the drafter's clock. after_rollout: called when all
        responses are in."""
        self.engine = engine
        self.run_seed = run_seed
        self.clock = clock
        self.after_rollout = after_rollout
        self.step = 0
        self.evaluation = False
        self.problems: Sequence[str] = ()
        self.last: Rollout | None = None
        self.sync_s = 0.0
        self.sync_error = 0.0  # largest |log p(engine) - log p(trainer)| of the last check
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.mode != "colocate":
            raise ValueError(f"vllm_mode={self.mode!r}: das needs the engine in the trainer's process; set colocate")
        overrides: dict[str, Any] = {}
        if self.accelerator.num_processes > 1:
            from trl.trainer.utils import ensure_master_addr_port

            ensure_master_addr_port()
            overrides["distributed_executor_backend"] = "external_launcher"
        # The engine in this process reseeds torch's global generator: the trainer's must not notice.
        with torch.random.fork_rng():
            self.llm = build_engine(self.engine, **overrides)
        self._engine_generate = self.llm.generate
        self.llm.generate = functools.partial(self._generate_keyed)  # type: ignore[method-assign]
        self._llm_weights_sleeping = False
        self.accelerator.wait_for_everyone()

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine and check that they arrived.

        Raises WeightSyncError when log-probs of the two differ by more than rounding.
        """
        start = time.perf_counter()
        super().sync_weights()
        self.llm.collective_rpc("das_repack")
        self._check_weights()
        self.sync_s = time.perf_counter() - start

    def _check_weights(self) -> None:
        from vllm import SamplingParams

        if self.last is not None:
            prompt = self.last.responses[0][:32]
        else:
            prompt = list(range(8, 24))  # any tokens will do: both sides see the same
        probe = SamplingParams(temperature=1.0, max_tokens=PROBE_TOKENS, logprobs=0, seed=self.step, detokenize=False)
        output = self._engine_generate([{"prompt_token_ids": prompt}], probe, use_tqdm=False)[0].outputs[0]
        tokens = list(output.token_ids)
        engine = torch.tensor([entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)])
        model = self.model
        device = next(model.parameters()).device
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *tokens]], device=device)).logits[0, len(prompt) - 1 : -1]
        trainer = logits.float().log_softmax(-1).gather(-1, torch.tensor(tokens, device=device)[:, None])[:, 0].cpu()
        self.sync_error = float((engine - trainer).abs().max())
        tolerance = LOGPROB_TOLERANCE[self.llm.llm_engine.model_config.dtype]
        if not self.sync_error <= tolerance:
            raise WeightSyncError(
                f"step {self.step}: engine and trainer disagree on log-probs by {self.sync_error:.3g} (allowed "
                f"{tolerance:g}): the new weights did not reach the engine"
            )

    def _generate_keyed(self, prompts: list[Any], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """llm.generate as TRL calls it, one shared `sampling_params`: every request gets its own seed and problem id."""
        if len(self.problems) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(self.problems)} problem ids: set `problems` first")
        first = self.accelerator.process_index * len(prompts)
        parameters = []
        for i, problem in enumerate(self.problems):
            own = sampling_params.clone()
            own.seed = request_seed(self.run_seed, self.step, first + i, self.evaluation)
            own.extra_args = {**(own.extra_args or {}), PROBLEM_KEY: problem}
            own.detokenize = bool(own.stop)  # TRL reads token ids; text is only needed to find stop strings
            parameters.append(own)
        self.llm.collective_rpc("das_begin_rollout")
        start = time.perf_counter()
        outputs = self._engine_generate(prompts, parameters, use_tqdm=use_tqdm)
        rollout_s = time.perf_counter() - start
        report = self.llm.collective_rpc("das_end_rollout", args=(self.clock(self.step + 1),))[0]
        # vLLM appends a random tail to request ids inside the engine.
        costs = {name.rsplit("-", 1)[0]: cost for name, cost in report.pop("requests").items()}
        self.last = Rollout(
            step=self.step,
            problems=list(self.problems),
            responses=[list(output.outputs[0].token_ids) for output in outputs],
            finish_reasons=[str(output.outputs[0].finish_reason) for output in outputs],
            requests=[costs[output.request_id] for output in outputs],
            rollout_s=rollout_s,
            report=report,
        )
        self.after_rollout()
        return outputs
