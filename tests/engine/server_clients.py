"""Many clients of one server, who abort at random, and check each answer. It may get new weights or be killed."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import psutil
from openai import APIError, APITimeoutError, AsyncOpenAI
from servers import Server

CLIENTS = 200
PROMPTS, SEEDS, TOKENS = 12, 4, 60  # the reference: responses of TOKENS tokens to each prompt with each seed
Reference = dict[tuple[int, int], list[int]]
LOST = (APIError, httpx.HTTPError, psutil.NoSuchProcess)  # by a server that is killed


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 250, int(rng.integers(3, 30))).tolist() for _ in range(PROMPTS)]


@dataclass
class Service:
    """A server as its clients know it."""

    server: Server
    references: Sequence[Reference]  # the responses with each version of the weights
    version: int = 0  # the version that the server has
    changes: int = 0  # how often a change of the weights has begun or ended
    changing: int = 0  # how many go on now
    kills: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def change(self) -> Iterator[None]:
        """What happens inside may change the weights and cut answers."""
        self.changes, self.changing = self.changes + 1, self.changing + 1
        try:
            yield
        finally:
            self.changes, self.changing = self.changes + 1, self.changing - 1

    def changed(self, since: int) -> bool:
        """Whether a change went on at some time after `changes` was `since`."""
        return self.changing > 0 or self.changes != since

    def possible(self, since: int) -> Sequence[Reference]:
        """The references of which an answer is one, to a request that was sent when `changes` was `since`."""
        return self.references if self.changed(since) else [self.references[self.version]]


@dataclass
class Counts:
    """What the clients saw."""

    complete: int = 0
    aborted: int = 0
    lost: int = 0  # by kills
    tokens: int = 0
    unknown: int = 0  # requests without a seed, of prompts that nobody else has
    wrong: list[str] = field(default_factory=list)

    def check(
        self, prompt: int, seed: int, tokens: list[int], expected: int | None, references: Sequence[Reference]
    ) -> None:
        """expected: how many tokens the response must have; None if it was cut. references: it must be one of these."""
        self.tokens += len(tokens)
        right = [reference[prompt, seed] for reference in references]
        if tokens not in (one[: len(tokens)] for one in right) or (expected is not None and len(tokens) != expected):
            self.wrong.append(f"prompt {prompt} seed {seed} of {expected} tokens: {tokens}, not {right}")


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


async def one_request(client: AsyncOpenAI, rng: random.Random, counts: Counts, service: Service) -> None:
    """A request of a random kind: all at once or as a stream, of one response or of two, finished or aborted.

    The server may cut it when its weights change.
    """
    max_tokens, since = rng.randint(1, TOKENS), service.changes
    if rng.random() < 1 / 3:
        await unknown_request(client, [rng.randint(5, 250) for _ in range(12)], max_tokens, counts, service)
        return
    number, aborts = rng.randrange(PROMPTS), rng.random() < 0.4
    prompt = prompts()[number]
    if rng.random() < 0.5:
        seed = rng.randrange(SEEDS)
        received: list[int] = []
        stop_at = rng.randint(1, max_tokens) if aborts else TOKENS + 1
        try:
            stream = await client.completions.create(**request(prompt, seed, max_tokens, stream=True))
            async for chunk in stream:
                for choice in chunk.choices:
                    received += tokens_of(choice)
                if len(received) >= stop_at:
                    break
            await stream.close()
        finally:
            broken = len(received) < max_tokens and (len(received) >= stop_at or service.changed(since))
            counts.check(number, seed, received, None if broken else max_tokens, service.possible(since))
        counts.aborted += broken
        counts.complete += not broken
        return
    num_responses = rng.randint(1, 2)
    seed = rng.randrange(SEEDS - num_responses + 1)
    # Not by cancelling the task: a connection that is cancelled while it opens can leave the client waiting for ever.
    timeout = rng.uniform(0.05, 5) if aborts else 300
    try:
        done = await client.completions.create(**request(prompt, seed, max_tokens, n=num_responses), timeout=timeout)
    except APITimeoutError:
        if not aborts:
            raise
        counts.aborted += 1
        return
    counts.complete += 1
    for choice in done.choices:
        expected = None if was_cut(choice, service, since) else max_tokens
        counts.check(number, seed + choice.index, tokens_of(choice), expected, service.possible(since))


def was_cut(choice: Any, service: Service, since: int) -> bool:
    return choice.finish_reason == "abort" and service.changed(since)


async def unknown_request(
    client: AsyncOpenAI, prompt: list[int], max_tokens: int, counts: Counts, service: Service
) -> None:
    """A request without a seed. The engine has to count its prompt, and there is no end of such prompts."""
    since = service.changes
    (choice,) = (await client.completions.create(**request(prompt, None, max_tokens))).choices
    num_tokens = len(tokens_of(choice))
    counts.tokens += num_tokens
    counts.complete += 1
    counts.unknown += 1
    if num_tokens != max_tokens and not was_cut(choice, service, since):
        counts.wrong.append(f"an unknown prompt: {num_tokens} tokens, not {max_tokens}")


async def soak(
    service: Service,
    seconds: float,
    watch: Callable[[float, Counts], None],
    trouble: Callable[[Callable[[], bool]], Awaitable[None]],
    enough: Callable[[Counts], bool] = lambda counts: False,
) -> Counts:
    """CLIENTS clients use the server for some seconds, or until it is enough.

    watch: gets the time and the counts every other second, unless the server is killed then. trouble: changes and kills
    the server; it gets a function that says whether the soak goes on.
    """
    counts, began = Counts(), time.monotonic()
    service.up.set()

    def goes_on() -> bool:
        return time.monotonic() - began < seconds and not enough(counts)

    async def client(number: int) -> None:
        rng = random.Random(number)
        await asyncio.sleep(rng.uniform(0, min(5, seconds / 4)))
        while goes_on():
            await service.up.wait()
            kills = service.kills
            try:
                async with client_of(service.server.url) as connection:
                    while goes_on() and kills == service.kills:
                        await one_request(connection, rng, counts, service)
                        await asyncio.sleep(rng.uniform(0, 0.2))
            except LOST:
                if kills == service.kills:
                    raise
                counts.lost += 1

    async def watcher() -> None:
        while goes_on():
            await asyncio.sleep(2)
            await service.up.wait()
            kills = service.kills
            try:
                await asyncio.to_thread(watch, time.monotonic() - began, counts)
            except LOST:
                if kills == service.kills:
                    raise

    async with asyncio.TaskGroup() as tasks:  # an error ends all of them
        for each in (watcher(), trouble(goes_on), *(client(number) for number in range(CLIENTS))):
            tasks.create_task(each)
    return counts
