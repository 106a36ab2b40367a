"""What happens to a server while its clients go on: it gets other weights and back, saves its history, is killed, also
amid both, and starts again with this history; a damaged copy is refused. Every answer must be that of a server without
drafts and with the same weights.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from requests import RequestException
from safetensors.torch import load_file
from server_clients import LOST, Reference, Service, reference_of
from servers import Server

from das.engine.patches.weights import WEIGHT_TRANSFER
from das.general.errors import EngineError
from das.trl.engines.server_client import ServerClient

TRANSFER = ("--weight-transfer-config", json.dumps({"backend": WEIGHT_TRANSFER}))  # an option of every server here
FRONT, ENGINE = "python", "VLLM::Engine"  # names of a server's processes
ENDED = (EngineError, RequestException, *LOST)  # what ends who loads weights or saves amid a kill; TRL: Exception
Weights = Mapping[str, torch.Tensor]


def versions(policy: str) -> list[Weights]:
    """The weights of a policy, and others."""
    weights = load_file(Path(policy) / "model.safetensors")
    other = {name: -tensor if "o_proj" in name else tensor for name, tensor in weights.items()}
    return [weights, other]


def load(url: str, weights: Weights) -> None:
    """Send weights to a server as a trainer does."""
    trainer = ServerClient(base_url=url, group_port=0)
    trainer.init_communicator("cpu")
    metadata = [(name, "float32", list(tensor.shape)) for name, tensor in weights.items()]
    trainer.update_named_params(metadata, iter(weights.items()))


def references_of(server: Server, weights: Sequence[Weights]) -> list[Reference]:
    """What a server without drafts answers with each of these weights. It keeps the first ones."""
    found = []
    for each in weights:
        load(server.url, each)
        found.append(asyncio.run(reference_of(server.url)))
        httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
    load(server.url, weights[0])
    assert all(found[0][asked] != found[1][asked] for asked in found[0])
    return found


class Trouble:
    """What happens to a server while its clients go on. drafter: the options of its drafter. draw: draws the moments.

    wrong: a line for each thing that went wrong.
    """

    def __init__(self, service: Service, weights: Sequence[Weights], drafter: Mapping[str, Any], draw: random.Random):
        self.service, self.server = service, service.server
        self.weights, self.drafter, self.draw = weights, drafter, draw
        self.history = self.server.folder / "history.npz"
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def sync(self) -> None:
        """Load the other weights. Requests that run are finished before, or cut; others wait."""
        service, url = self.service, self.server.url
        mode = self.draw.choice(("wait", "abort"))
        with service.change():
            await asyncio.to_thread(post, f"{url}/pause?mode={mode}")
            await asyncio.to_thread(load, url, self.weights[1 - service.version])
            service.version = 1 - service.version
        await asyncio.to_thread(post, f"{url}/resume")
        self.done[f"syncs ({mode})"] += 1

    async def save(self) -> None:
        await asyncio.to_thread(self.server.call, "das_save_history", str(self.history))
        self.done["saved"] += 1

    async def kill(self) -> None:
        """Kill one of the server's processes, at rest or amid a sync or save. Then start the server again."""
        service = self.service
        amid = self.draw.choice((None, self.sync, self.save))
        acting = asyncio.create_task(amid()) if amid else None
        await asyncio.sleep(self.draw.random())
        victim = (FRONT, ENGINE)[service.kills % 2]
        service.up.clear()
        service.kills += 1
        with service.change():
            await asyncio.to_thread(self.server.kill, victim)
            saved = self.history.exists()
            if saved:
                await asyncio.to_thread(self.refuse_damage)
            self.server.start(**self.options(self.history) if saved else {})
            await asyncio.to_thread(self.server.wait)
            service.version = 0
        service.up.set()
        if acting:
            (error,) = await asyncio.gather(acting, return_exceptions=True)
            expected = type(error) in (type(None), Exception) or isinstance(error, ENDED)
            if not expected:
                self.wrong.append(f"{amid} amid a kill: {error!r}")
        self.done[f"kills ({victim}{', amid ' + amid.__name__ if amid else ''})"] += 1

    def options(self, history: Path) -> dict[str, Any]:
        return {"drafter": {**self.drafter, "warm": str(history)}}

    def refuse_damage(self) -> None:
        """Start the server with a history of which a bit was changed, or an end is lost."""
        content = bytearray(self.history.read_bytes())
        # Among the tokens: nothing checks all bits of the heads of the files in a zip, and nothing reads them.
        at = self.draw.randrange(content.index(b"tokens.npy") + 200, content.index(b"lengths.npy") - 40)
        content[at] ^= 1
        damaged = self.history.with_name("damaged.npz")
        damaged.write_bytes(content[: self.draw.choice((at, len(content)))])
        code, said = self.server.refusal(**self.options(damaged))
        if code != 1 or not said.startswith("das.general.errors.EngineError: ") or damaged.name not in said:
            self.wrong.append(f"a damaged history: {code}, {said}")
        self.done["damaged"] += 1


def post(url: str) -> None:
    httpx.post(url, timeout=300).raise_for_status()
