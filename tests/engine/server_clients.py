"""Many clients of one server, who abort at random, and check each answer. Meanwhile it gets other weights and back."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from openai import AsyncOpenAI
from safetensors.torch import load_file
from servers import Server

from das.engine.patches.weights import WEIGHT_TRANSFER
from das.trl.engines.server_client import ServerClient

TRANSFER = ("--weight-transfer-config", json.dumps({"backend": WEIGHT_TRANSFER}))  # an option of every server here
CLIENTS = 100
PROMPTS, SEEDS, TOKENS = 12, 4, 60  # the reference: responses of TOKENS tokens to each prompt with each seed
Reference = dict[tuple[int, int], list[int]]
Weights = Mapping[str, torch.Tensor]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 250, int(rng.integers(3, 30))).tolist() for _ in range(PROMPTS)]


def versions(policy: str) -> list[Weights]:
    """The weights of a policy, and others."""
    weights = load_file(Path(policy) / "model.safetensors")
    return [weights, {name: -tensor if "o_proj" in name else tensor for name, tensor in weights.items()}]


def load(url: str, weights: Weights) -> None:
    """Send weights to a server as a trainer does. Requests that run are finished before, and others wait."""
    httpx.post(f"{url}/pause?mode=wait", timeout=300).raise_for_status()
    trainer = ServerClient(base_url=url, group_port=0)
    trainer.init_communicator("cpu")
    metadata = [(name, "float32", list(tensor.shape)) for name, tensor in weights.items()]
    trainer.update_named_params(metadata, iter(weights.items()))
    httpx.post(f"{url}/reset_prefix_cache").raise_for_status()
    httpx.post(f"{url}/resume", timeout=300).raise_for_status()


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


def request(prompt: list[int], seed: int | None, max_tokens: int, **further: Any) -> dict[str, Any]:
    extra = {"return_token_ids": True, "ignore_eos": True}
    asked = {"model": "policy", "prompt": prompt, "seed": seed, "max_tokens": max_tokens, "temperature": 0.7}
    return asked | {"extra_body": extra} | further


def tokens_of(choice: Any) -> list[int]:
    return choice.model_dump().get("token_ids") or []


async def reference_of(url: str) -> Reference:
    """The responses of a server without drafts, one request after the other for each prompt."""
    found: Reference = {}
    async with client_of(url) as client:
        for number, prompt in enumerate(prompts()):
            answer = await client.completions.create(**request(prompt, 0, TOKENS, n=SEEDS))
            for choice in answer.choices:  # vLLM numbers the seeds of n responses from `seed` on
                found[number, choice.index] = tokens_of(choice)
    return found


@dataclass
class Counts:
    """What the clients saw."""

    complete: int = 0
    aborted: int = 0
    unknown: int = 0  # requests without a seed, of prompts that nobody else has
    by_weights: Counter[int] = field(default_factory=Counter)  # answers that only these weights give
    wrong: list[str] = field(default_factory=list)


async def one_request(client: AsyncOpenAI, rng: random.Random, counts: Counts, references: Sequence[Reference]) -> None:
    """A request of a random length, finished or aborted, with the answer that one of the references has; or one that
    nobody asked before."""
    max_tokens = rng.randint(1, TOKENS)
    if rng.random() < 1 / 3:
        await client.completions.create(**request([rng.randint(5, 250) for _ in range(12)], None, max_tokens))
        counts.unknown += 1
        return
    number, seed = rng.randrange(PROMPTS), rng.randrange(SEEDS)
    stop_at = rng.randint(1, max_tokens) if rng.random() < 0.4 else TOKENS + 1
    received: list[int] = []
    stream = await client.completions.create(**request(prompts()[number], seed, max_tokens, stream=True))
    async for chunk in stream:
        received += [token for choice in chunk.choices for token in tokens_of(choice)]
        if len(received) >= stop_at:
            break
    await stream.close()
    counts.complete += len(received) == max_tokens
    counts.aborted += len(received) < max_tokens
    fits = [i for i, each in enumerate(references) if each[number, seed][: len(received)] == received]
    counts.by_weights.update(fits if len(fits) == 1 else [])
    if not fits or len(received) < min(stop_at, max_tokens):
        counts.wrong.append(f"prompt {number} seed {seed} of {max_tokens} tokens: {received}")


async def soak(
    server: Server, weights: Sequence[Weights], references: Sequence[Reference], enough: Callable[[Counts], bool]
) -> Counts:
    """CLIENTS clients use the server while it gets the other weights and the first ones again, and until it is
    enough."""
    counts, synced = Counts(), False

    async def client(number: int) -> None:
        rng = random.Random(number)
        async with client_of(server.url) as connection:
            while not synced or not enough(counts):
                await one_request(connection, rng, counts, references)
                await asyncio.sleep(rng.uniform(0, 0.2))

    async def sync() -> None:
        nonlocal synced
        for each in (weights[1], weights[0]):
            await asyncio.sleep(5)
            await asyncio.to_thread(load, server.url, each)
        synced = True

    async with asyncio.TaskGroup() as tasks:  # an error ends all of them
        for each in (sync(), *(client(number) for number in range(CLIENTS))):
            tasks.create_task(each)
    return counts
