"""TRL's generation backend on a cluster of engines (das/cluster): the trainer deals requests and weights out.

Of several ranks only the main one talks to the cluster. It rolls out what all ask for, and hands each its responses.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from das.cluster.cluster import Cluster
from das.cluster.messages import ClusterError, Response, WeightsPart
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineError
from das.engine.rollout import Rollout, RolloutRequest
from das.training import ranks
from das.training.generation import SpeculativeGeneration
from das.training.merge import divided
from das.training.weight_check import logprob_difference, logprob_problem

PART_BYTES = 256 * 2**20  # weights travel in parts of about this size


class ClusterGeneration(SpeculativeGeneration):
    """SpeculativeGeneration on engines of other processes. Seeds are those of an engine in this process, so tokens,
    rewards, losses and weights are equal, bit for bit, with any number of engines. With several ranks they equal those
    of as many ranks that have an engine each.

    After each sync every engine compares a sample of tensors, and all engines must sample the same 16 tokens, whose
    log-probs are compared with the trainer's.
    """

    engines_of_all_ranks = True

    def __init__(self, *args: Any, cluster: ClusterSettings, **kwargs: Any):
        """cluster: how many engines, and where. The other arguments are those of SpeculativeGeneration.

        Raises EngineError where the engines cannot be started, or for what a cluster does not do.
        """
        self.cluster_settings = cluster
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        for unwanted, why in (
            (self.enable_sleep_mode, "its engines do not share the trainer's memory: set vllm_enable_sleep_mode=False"),
            (self.tensor_parallel_size > 1, "its engines are one process each: set vllm_tensor_parallel_size=1"),
            (self.mode == "server", 'it starts its engines itself: set vllm_mode="colocate"'),
        ):
            if unwanted:
                raise EngineError(f"cluster: {why}")
        self.llm: Any = None
        self.cluster: Cluster  # on the main rank
        weights_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self._dtype = getattr(torch, ranks.from_main(lambda: self._start_engines(weights_bytes)))

    def _start_engines(self, weights_bytes: int) -> str:
        """Start the engines, and say what type they compute in."""
        try:
            self.cluster = Cluster(
                self.cluster_settings,
                self.engine,
                kv_cache_gib=int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")),
                threads=torch.get_num_threads(),
                weights_bytes=weights_bytes,
            )
        except ClusterError as error:
            raise EngineError(str(error)) from error
        dtype: str = next(iter(self.cluster.engines.call_all("dtype").values()))
        return dtype

    def _load_weights(self) -> str:
        self.check_s = 0.0  # the engines check while they load
        tensors = self._iter_named_params()  # all ranks gather those that are sharded
        if not ranks.is_main():
            for _ in tensors:
                pass
            self.weight_sample.take()
            return ""
        parts = list(packed(tensors))
        sample, num_loaded = self.weight_sample.take()
        if not num_loaded:
            return "the new weights did not reach the engines: none was loaded"
        problem = self.cluster.engines.load_weights(parts, [name for name, _ in sample])
        return f"the new weights did not reach the engines: {problem}" if problem else ""

    def _compare_logprobs(self) -> str:
        self.sync_error = logprob_difference(self.model, self._probe, self.step)
        return logprob_problem(self.sync_error, self._dtype)

    def _probe(self, prompts: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
        """What all engines sample, as vLLM's output."""
        response = ranks.from_main(lambda: self.cluster.probe(prompts[0]["prompt_token_ids"], params))
        assert response.logprobs is not None
        tokens = response.tokens.tolist()
        logprobs = [
            {token: SimpleNamespace(logprob=logprob)}
            for token, logprob in zip(tokens, response.logprobs.tolist(), strict=True)
        ]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=logprobs)])]

    def generate(self, prompts: list[Any], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """VLLMGeneration.generate: (prompt ids, completion ids, log-probs, their token ids), a list a row each."""
        if images is not None and any(image is not None for image in images):
            raise EngineError("cluster: das sends token ids only, and these prompts have images")
        with profiler or nullcontext():
            rows = [{"prompt_token_ids": prompt} for prompt in prompts]
            responses: list[Response] = self._generate_keyed(rows, self._sampling_params())
        rollout = self._turns[-1].rollout if self._turns else self.last
        assert rollout is not None
        start = time.perf_counter()
        logprobs = None if self.logprobs is None else [_column(response.logprobs) for response in responses]
        token_ids = None if self.logprobs is None else [response.tokens[:, None].tolist() for response in responses]
        took = 1e6 * (time.perf_counter() - start) / max(1, rollout.tokens)
        if ranks.is_main():
            rollout.report["cluster"]["handover_us_per_token"] += took
        return prompts, rollout.responses, logprobs, token_ids

    def _sampling_params(self) -> Any:
        """vLLM's SamplingParams, from the arguments that TRL gives its own colocated engine."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        arguments = {
            "repetition_penalty": self.repetition_penalty,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": 0.0 if self.min_p is None else self.min_p,
            "max_tokens": self.max_completion_length,
            "logprobs": self.logprobs,
            **self.generation_kwargs,
        }
        if self.structured_outputs_regex is not None:
            arguments["structured_outputs"] = StructuredOutputsParams(regex=self.structured_outputs_regex)
        if arguments["logprobs"] not in (None, 0):
            raise EngineError(f"cluster: logprobs={arguments['logprobs']}: engines return those of sampled tokens only")
        return SamplingParams(**arguments)

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Roll out what all ranks ask for, on the main rank. Each gets the responses that it asked for."""
        asked = ranks.gather((request.prompts, list(request.problems), list(request.seeds)))
        parts: list[tuple[list[Any], Rollout]] = []
        ranks.from_main(lambda: parts.extend(self._roll_out_for(request, asked)))
        start = time.perf_counter()
        responses, rollout = ranks.scatter(parts)
        if ranks.is_main():
            tokens = sum(part.tokens for _, part in parts)
            rollout.report["cluster"]["handover_us_per_token"] += 1e6 * (time.perf_counter() - start) / tokens
        return responses, rollout

    def _roll_out_for(
        self, request: RolloutRequest, asked: Sequence[tuple[Sequence[Any], list[str], list[int]]]
    ) -> list[tuple[list[Any], Rollout]]:
        """The responses and the rollout of each rank. asked: prompts, problems and seeds of each rank."""
        prompts, problems, seeds = (list(chain.from_iterable(of_ranks)) for of_ranks in zip(*asked, strict=True))
        responses, rollout = self.cluster.roll_out(replace(request, prompts=prompts, problems=problems, seeds=seeds))
        own = divided(rollout, [len(prompts) for prompts, _, _ in asked])
        waiting = iter(responses)
        return [(list(islice(waiting, len(part.responses))), part) for part in own]

    def _roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        return self.cluster.roll_out_turn(request, turn)

    def _end_turns(self) -> dict[str, Any]:
        return self.cluster.end_turns(self.step, self.history_tick, self.evaluation)

    @contextmanager
    def _evaluation_drafter(self) -> Iterator[None]:
        with self.cluster.evaluation() if ranks.is_main() else nullcontext():
            yield

    def save_history(self, path: Path) -> None:
        """Write what all engines rolled out, for `drafter.warm`."""
        if ranks.is_main():
            self.cluster.save_history(path)

    def _save_drafter(self, folder: Path) -> None:
        if ranks.is_main():
            self.cluster.save_state(folder)

    def _load_drafter(self, folder: Path) -> None:
        if ranks.is_main():
            self.cluster.load_state(folder)

    def close(self) -> None:
        """End the engines."""
        if ranks.is_main():
            self.cluster.close()


def packed(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[WeightsPart]:
    """The tensors as bytes, in parts of about PART_BYTES."""
    tensors: list[tuple[str, str, list[int]]] = []
    data: list[np.ndarray] = []
    for name, tensor in named_tensors:
        held = tensor.detach().to("cpu").contiguous()
        tensors.append((name, str(held.dtype).removeprefix("torch."), list(held.shape)))
        data.append(held.reshape(-1).view(torch.uint8).numpy().copy())
        if sum(map(len, data)) >= PART_BYTES:
            yield WeightsPart(tensors, np.concatenate(data))
            tensors, data = [], []
    if tensors:
        yield WeightsPart(tensors, np.concatenate(data))


def _column(logprobs: np.ndarray | None) -> list[list[float | None]]:
    """Log-probs [T] as TRL takes them: a list for each token, None for NaN."""
    assert logprobs is not None
    column: list[list[float | None]] = logprobs[:, None].tolist()
    for at in np.flatnonzero(np.isnan(logprobs)).tolist():
        column[at] = [None]
    return column
