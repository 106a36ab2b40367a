"""A server that was started with das, on which TRL rolls out with `vllm_mode="server"`: one engine for all ranks."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trl.generation.vllm_client import parse_logprobs
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.checked_policies import Policy
from das.engine.rollouts.rollout import Rollout, RolloutRequest, roll_out
from das.general import ranks
from das.general.errors import EngineError
from das.trl.determinism import algorithms_of_the_engine
from das.trl.engines import NewWeights, SeenByTRL
from das.trl.engines.in_process import DasEngine
from das.trl.engines.server_client import Completion, ServerClient
from das.weights.weight_check import fingerprint, problem_of


class ServerEngine(DasEngine):
    """The server's engine. Only the main rank talks to the server, as in TRL.

    The options of the server decide which drafter it uses and how its engine is built. Seeds and problem ids travel
    with each request.
    """

    keeps_history = False

    def __init__(self, generation: VLLMGeneration, method: str):
        """Connect to the server, on the main rank. Raises EngineError if it was not started with das, or for another
        method."""
        generation.enable_sleep_mode = False  # TRL ignores it here
        self.ranks_together = generation.accelerator.num_processes
        client: Any = None
        policy: Any = None
        if generation.accelerator.is_main_process:
            url = generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}"
            client = ServerClient(
                base_url=url, group_port=generation.group_port, connection_timeout=generation.server_timeout
            )
            client.require_das(method)
            client.collective_rpc("das_meet_trainer")
            policy = Policy(*client.collective_rpc("das_policy")[0])
            client.init_communicator(device=generation.accelerator.device)
        super().__init__(client)
        self.policy = ranks.from_main(lambda: policy)
        generation.accelerator.wait_for_everyone()

    def seen_by_trl(self, answer: Callable[..., list[Any]]) -> SeenByTRL:
        """See Engines. TRL calls it `vllm_client`."""
        return SeenByTRL(self.llm, partial(_generate_for_trl, answer))

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines. There is one turn only."""
        rows = SimpleNamespace(generate=self.llm.generate_rows, collective_rpc=self.llm.collective_rpc)
        return roll_out(rows, request)

    def load_weights(self, new: NewWeights) -> str:
        """See Engines. TRL's own code sends the weights by `update_named_params` of the client. The server's workers
        keep those of the sample as they arrive."""
        sample, server = new.sample, self.llm
        if server is not None:
            server.collective_rpc("das_expect_weights", [sample.every, sample.syncs])
        new.push()
        loaded = time.perf_counter()
        tensors = sample.take()
        if server is None:
            return ""
        sent = dict(zip(dict(tensors), fingerprint(dict(tensors).values()), strict=True))
        problem = problem_of(_lost(sent, *answer) for answer in server.collective_rpc("das_lost_of_expected"))
        new.sync.check_s = time.perf_counter() - loaded
        return problem

    def completed(self, generated: Any, rollout: Rollout | None, logprobs: bool) -> tuple[Any, Rollout | None]:
        """See Engines. On the main rank alone TRL's own code called `_generate_for_trl`."""
        return generated, ranks.from_main(lambda: rollout)

    def save_state(self, folder: Path) -> None:
        """Do nothing: the server keeps the history."""

    def load_state(self, folder: Path) -> None:
        """Do nothing: the server has kept the history, unless it was started anew."""


def _lost(sent: Mapping[str, int], lost: str, arrived: Mapping[str, int]) -> str:
    """Returns, in words, which tensors a worker lacks. sent, arrived: fingerprints of tensors, by name. lost: what the
    worker says of those that arrived."""
    others = [name for name, number in sent.items() if arrived.get(name) != number]
    return f"{others[0]} arrived with other values" if others else lost


def _generate_for_trl(
    answer: Callable[..., list[Any]],
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
    with algorithms_of_the_engine():
        outputs = answer(rows, Completion({**sampling, **generation_kwargs}))
    logprobs, logprob_token_ids = parse_logprobs([output.outputs[0].logprobs for output in outputs])
    return {
        "prompt_ids": [output.prompt_token_ids for output in outputs[::n]],
        "completion_ids": [output.outputs[0].token_ids for output in outputs],
        "logprobs": logprobs,
        "logprob_token_ids": logprob_token_ids,
    }
