"""The requests of das's loops as verl's clients pass them on, and where the router places them. Prints them as JSON."""

import asyncio
import json
from typing import Any

from by_problem import ByProblem
from das_loop import NamedRequests
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm", "response_length": 6}}})


class Server:
    """Aborts each request after two tokens, as often as it is told to. Writes down what it is asked."""

    def __init__(self, aborts: int = 0):
        self.aborts, self.asked, self.generate = aborts, [], self
        self.remote = self.answer

    async def answer(self, prompt_ids: list[int], sampling_params: dict[str, Any], **rest: Any) -> TokenOutput:
        self.asked.append([prompt_ids, sampling_params.get("seed"), sampling_params["extra_args"]["das_problem"]])
        self.aborts -= 1
        reason = "aborted" if self.aborts >= 0 else "completed"
        return TokenOutput(token_ids=[7, 8], log_probs=[-1.0, -1.0], stop_reason=reason)


def asking(kind: type[LLMServerClient], server: Server) -> LLMServerClient:
    """A client of verl's with one server, without Ray."""

    class Client(kind):
        async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Server]:
            return "0", server

        def _release_server(self, server_id: str, request_id: str | None = None) -> None: ...

    return Client(CONFIG)


async def turns(kind: type[LLMServerClient], aborts: int = 0, sample: int = 0) -> list[Any]:
    """What a server is asked in a conversation of two turns."""
    server, prompt = Server(aborts), [1, 2, 3]
    client = NamedRequests(asking(kind, server), 42, 1, 0, sample)
    for _ in range(2):
        answer = await client.generate("name", prompt_ids=prompt, sampling_params={"temperature": 1.0})
        prompt = [*prompt, *answer.token_ids, 4]
    return server.asked


def placed() -> list[str]:
    """Where requests of the problems a, b, a, c, a and b go, when a's replica leaves after the fourth."""
    router, places = ByProblem({"0": None, "1": None, "2": None}, {}), []
    for name in ("a", "b", "a", "c", "a", "b"):
        if len(places) == 4:
            router.remove_servers([places[0]])
        places.append(router.acquire_server(name, sampling_params={"extra_args": {"das_problem": name}})[0])
    return places


if __name__ == "__main__":
    runs = {
        "sync": asyncio.run(turns(LLMServerClient)),
        "again": asyncio.run(turns(LLMServerClient)),
        "sibling": asyncio.run(turns(LLMServerClient, sample=1)),
        "aborted": asyncio.run(turns(FullyAsyncLLMServerClient, aborts=1)),
        "placed": placed(),
    }
    print(json.dumps(runs))
