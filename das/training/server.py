"""A server of vLLM that a trainer of TRL rolls out on (`vllm_mode="server"`): a request for each row, over HTTP."""

import copy
import json
import socket
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import torch
from trl.generation.vllm_client import VLLMClient
from vllm.utils.network_utils import get_ip

from das.engine.build import EngineError
from das.engine.patches import WEIGHT_TRANSFER, WORKER
from das.engine.weight_transfer import TRAINER, join

CONNECTIONS = 256  # requests that are sent at once


@dataclass
class Completion:
    """What a request asks for: the `body` that all rows share, and what differs from row to row.

    It stands in for vLLM's SamplingParams in a RolloutRequest.
    """

    body: dict[str, Any]  # of /v1/completions
    seed: int = 0
    extra_args: dict[str, Any] = field(default_factory=dict)
    detokenize: bool = True
    n: int = 1

    @property
    def stop(self) -> Any:
        """Strings that end a response."""
        return self.body.get("stop")

    def clone(self) -> "Completion":
        """A copy for a row."""
        return copy.copy(self)


class ServerClient(VLLMClient):
    """TRL's client. It sends weights over gloo where there is no GPU, and is to a rollout what vLLM's LLM is."""

    def require_das(self, drafts: bool) -> str:
        """Check how the server was started, and return its dtype.

        drafts: whether the script asks for drafts. Raises EngineError, in one line, for a server that does not run das
        or does not do that.
        """
        config = self.get_server_info()
        if config["parallel_config"]["worker_cls"] != WORKER:
            raise EngineError(
                f"the server at {self.base_url} does not run das: start it with --worker-cls {WORKER} and the other "
                "arguments in docs/parallel.md"
            )
        if drafts != (config["speculative_config"] is not None):
            raise EngineError(
                f"the server at {self.base_url} decides what drafts, and it was started "
                f"{'without' if drafts else 'with'} --speculative-config: "
                f"{'add it' if drafts else 'leave it out'}, or change das.speculate()"
            )
        return str(config["model_config"]["dtype"]).removeprefix("torch.")

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Meet the server's workers, to send them weights."""
        if not _on_cpu(device):
            super().init_communicator(device)
            return
        transfer = self.get_server_info()["weight_transfer_config"]
        if transfer is None or transfer["backend"] != WEIGHT_TRANSFER:
            raise EngineError(
                f"the server at {self.base_url} cannot take weights from a trainer without a GPU: start it with "
                f"""--weight-transfer-config '{{"backend": "{WEIGHT_TRANSFER}"}}'"""
            )
        local = _is_loopback(self.host)
        meeting = {
            "master_address": "127.0.0.1" if local else get_ip(),
            "master_port": self.group_port,
            "rank_offset": 1,
            "world_size": self.get_world_size() + 1,
        }
        with ThreadPoolExecutor(max_workers=1) as executor:  # the workers wait for the trainer, and it for them
            theirs = executor.submit(
                self._post, f"{self.base_url}/init_weight_transfer_engine", json={"init_info": meeting}
            )
            self.gloo = join(meeting["master_address"], self.group_port, TRAINER, meeting["world_size"])
            theirs.result()

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
        with ThreadPoolExecutor(max_workers=1) as executor:
            theirs = executor.submit(self._post, f"{self.base_url}/update_weights", json={"update_info": announced})
            for _, tensor in named_params:
                self.gloo.broadcast(tensor.detach().contiguous(), TRAINER).wait()
            theirs.result()
        self._finish_weight_update()

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of every worker."""
        call = {"method": "das_call", "args": [method, *args]}
        return [json.loads(answer) for answer in self._post(f"{self.base_url}/collective_rpc", json=call)["results"]]

    def generate_rows(
        self, prompts: Sequence[Any], completions: Sequence[Completion], use_tqdm: bool = False
    ) -> list[Any]:
        """llm.generate: what vLLM's RequestOutput holds, as far as rollouts read it, for each prompt."""
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


def warn_if_exposed(base_url: str) -> None:
    """Warn if other machines can reach a server that runs whatever it is told (VLLM_SERVER_DEV_MODE=1)."""
    address = urlparse(base_url)
    host, port = address.hostname or "", address.port or 80
    if _is_loopback(host) and not _reachable(get_ip(), port):
        return
    warnings.warn(
        f"the server at {base_url} can be reached from other machines, and VLLM_SERVER_DEV_MODE=1 lets anyone who "
        "reaches it load weights and call its workers: start it with --host 127.0.0.1, or close the port to others",
        RuntimeWarning,
        stacklevel=2,
    )


def _is_loopback(host: str) -> bool:
    """Whether `host` is this machine, as only it sees itself. A client that connects to 0.0.0.0 reaches itself, too."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _reachable(address: str, port: int) -> bool:
    if _is_loopback(address):  # the machine has no other
        return False
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _on_cpu(device: torch.device | str | int) -> bool:
    return not isinstance(device, int) and torch.device(device).type == "cpu"
