"""TRL's generation backend with `vllm_mode="server"`: rollouts on a server that was started with das."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.generation.vllm_client import parse_logprobs

from das import ranks
from das.errors import EngineError
from das.trl.engines.in_process import DasEngine
from das.trl.engines.server_client import Completion, ServerClient, warn_if_exposed
from das.trl.generation import SpeculativeGeneration
from das.weights.weight_check import logprob_difference, logprob_problem


class ServerGeneration(SpeculativeGeneration):
    """A SpeculativeGeneration with one server for all ranks. Only the main rank talks to the server, as in TRL.

    The options of the server decide which drafter it uses and how its engine is built. Seeds and problem ids travel
    with each request. Weights are checked by log-probs.
    """

    keeps_history = False
    room = None  # the server's, which it does not tell

    def _init_vllm(self) -> None:
        self.enable_sleep_mode = False  # TRL ignores it here
        self.llm: Any = None
        dtype = ""
        if self.accelerator.is_main_process:
            url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
            self.llm = self.vllm_client = ServerClient(
                base_url=url, group_port=self.group_port, connection_timeout=self.server_timeout
            )
            warn_if_exposed(url)
            dtype = self.llm.require_das(self.engine.method)
            self.llm.collective_rpc("das_meet_trainer")
            self.llm.init_communicator(device=self.accelerator.device)
            self.llm.generate = self._generate_for_trl
            self.engines = DasEngine(self.llm, self.llm.generate_rows)
        self._dtype = getattr(torch, ranks.from_main(lambda: dtype))
        self.accelerator.wait_for_everyone()

    def _load_weights(self) -> str:
        super(SpeculativeGeneration, self).sync_weights()  # TRL's own method
        return ""

    def _compare_logprobs(self) -> str:
        self.sync.error = logprob_difference(self.model, self._probe, self.step)
        return logprob_problem(self.sync.error, self._dtype)

    def _probe(self, prompts: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
        """Let the server generate for the check of log-probs. Returns its outputs on every rank, because all ranks
        compute the log-probs of a sharded policy."""
        outputs: list[Any] = []
        if self.llm is not None:
            body = {"temperature": params.temperature, "max_tokens": params.max_tokens, "logprobs": params.logprobs}
            outputs = self.llm.generate_rows(prompts, [Completion(body, params.seed, params.extra_args)])
            for output in (output.outputs[0] for output in outputs):
                output.logprobs = [
                    {token: SimpleNamespace(logprob=logprob)}
                    for token, logprob in zip(output.token_ids, output.logprobs["token_logprobs"], strict=True)
                ]
        return list(ranks.from_main(lambda: outputs))

    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any = None) -> Any:
        """Generate for the announced rows. Problem ids of all ranks are gathered in TRL's order of prompts."""
        self._problems_of_all = gather_object(list(self.problems))
        generated = super().generate(prompts, images, num_generations, profiler)
        self.last = ranks.from_main(lambda: self.last)
        if self.llm is None:
            assert self.last is not None
            self._count_drafts(self.last)
        return generated

    def _gathered_problems(self) -> Sequence[str]:
        return self._problems_of_all

    def _own_engine(self) -> tuple[int, int]:
        return 0, 1

    def _generate_for_trl(
        self,
        prompts: list[list[int]],
        features: Any,
        n: int,
        structured_outputs_regex: str | None,
        generation_kwargs: dict[str, Any],
        **sampling: Any,
    ) -> dict[str, Any]:
        """Takes the place of VLLMClient.generate. TRL asks for `n` responses to each prompt."""
        if features is not None:
            raise EngineError('vllm_mode="server": das sends token ids only, and these prompts have images')
        if structured_outputs_regex is not None:
            sampling["structured_outputs"] = {"regex": structured_outputs_regex}
        rows = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(n)]
        outputs = self._generate_keyed(rows, Completion({**sampling, **generation_kwargs}))
        logprobs, logprob_token_ids = parse_logprobs([output.outputs[0].logprobs for output in outputs])
        return {
            "prompt_ids": [output.prompt_token_ids for output in outputs[::n]],
            "completion_ids": [output.outputs[0].token_ids for output in outputs],
            "logprobs": logprobs,
            "logprob_token_ids": logprob_token_ids,
        }
