"""Many clients of one server, who abort at random: no wrong token, and nothing grows.

PYTHONPATH=.dev:. .venv/bin/python tests/engine/server_soak.py 10      minutes. Starts a server with drafts and one
without, which gives the reference; prints a row every ten seconds, then the verdict.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import APITimeoutError, AsyncOpenAI

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

CLIENTS = 200
PROMPTS, SEEDS, TOKENS = 12, 4, 60  # the reference: responses of TOKENS tokens to each prompt with each seed
Reference = dict[tuple[int, int], list[int]]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 250, int(rng.integers(3, 30))).tolist() for _ in range(PROMPTS)]


@dataclass
class Counts:
    """What the clients saw."""

    complete: int = 0
    aborted: int = 0
    tokens: int = 0
    unknown: int = 0  # requests without a seed, of prompts that nobody else has
    wrong: list[str] = field(default_factory=list)

    def check(self, prompt: int, seed: int, tokens: list[int], expected: int | None, reference: Reference) -> None:
        """expected: how many tokens the response must have; None if it was aborted."""
        self.tokens += len(tokens)
        right = reference[prompt, seed]
        if tokens != right[: len(tokens)] or (expected is not None and len(tokens) != expected):
            self.wrong.append(f"prompt {prompt} seed {seed} of {expected} tokens: {tokens}, not {right}")


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


def request(prompt: list[int], seed: int | None, max_tokens: int, **further: Any) -> dict[str, Any]:
    extra = {"return_token_ids": True, "ignore_eos": True}
    asked = {"model": "policy", "prompt": prompt, "seed": seed, "max_tokens": max_tokens, "temperature": 0.7}
    return asked | {"extra_body": extra} | further


async def reference_of(url: str) -> Reference:
    """The responses of a server without drafts, one request after the other for each prompt."""
    found: Reference = {}
    async with client_of(url) as client:
        for number, prompt in enumerate(prompts()):
            answer = await client.completions.create(**request(prompt, 0, TOKENS, n=SEEDS))
            for choice in answer.choices:  # vLLM numbers the seeds of n responses from `seed` on
                found[number, choice.index] = choice.model_dump()["token_ids"]
    return found


async def one_request(client: AsyncOpenAI, rng: random.Random, counts: Counts, reference: Reference) -> None:
    """A request of a random kind: all at once or as a stream, of one response or of two, finished or aborted."""
    max_tokens = rng.randint(1, TOKENS)
    if rng.random() < 1 / 3:
        await unknown_request(client, [rng.randint(5, 250) for _ in range(12)], max_tokens, counts)
        return
    number, aborts = rng.randrange(PROMPTS), rng.random() < 0.4
    prompt = prompts()[number]
    if rng.random() < 0.5:
        seed = rng.randrange(SEEDS)
        received: list[int] = []
        stream = await client.completions.create(**request(prompt, seed, max_tokens, stream=True))
        stop_at = rng.randint(1, max_tokens) if aborts else TOKENS + 1
        async for chunk in stream:
            for choice in chunk.choices:
                received += choice.model_dump().get("token_ids") or []
            if len(received) >= stop_at:
                break
        await stream.close()
        broken = len(received) < max_tokens and len(received) >= stop_at
        counts.check(number, seed, received, None if broken else max_tokens, reference)
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
        counts.check(number, seed + choice.index, choice.model_dump()["token_ids"], max_tokens, reference)


async def unknown_request(client: AsyncOpenAI, prompt: list[int], max_tokens: int, counts: Counts) -> None:
    """A request without a seed. The engine has to count its prompt, and there is no end of such prompts."""
    answer = await client.completions.create(**request(prompt, None, max_tokens))
    tokens = answer.choices[0].model_dump()["token_ids"]
    counts.tokens += len(tokens)
    counts.complete += 1
    counts.unknown += 1
    if len(tokens) != max_tokens:
        counts.wrong.append(f"an unknown prompt: {len(tokens)} tokens, not {max_tokens}")


async def soak(
    url: str,
    reference: Reference,
    seconds: float,
    watch: Callable[[float, Counts], None] = lambda *_: None,
    enough: Callable[[Counts], bool] = lambda counts: False,
) -> Counts:
    """CLIENTS clients use the server for some seconds, or until it is enough.

    watch: gets the time and the counts every other second.
    """
    counts, began = Counts(), time.monotonic()

    async def client(number: int) -> None:
        rng = random.Random(number)
        await asyncio.sleep(rng.uniform(0, min(5, seconds / 4)))
        async with client_of(url) as connection:
            while time.monotonic() - began < seconds and not enough(counts):
                await one_request(connection, rng, counts, reference)
                await asyncio.sleep(rng.uniform(0, 0.2))

    async def watcher() -> None:
        while True:
            await asyncio.sleep(2)
            await asyncio.to_thread(watch, time.monotonic() - began, counts)

    watching = asyncio.create_task(watcher())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching  # raises what ended it early
    return counts


def main(minutes: float) -> int:
    """Soak a server with a random policy, and print what it holds. Returns 1 where a token was wrong."""
    from conftest import random_policy, sharpened
    from servers import running

    from analysis.soak import growth

    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = sharpened(Path(random_policy(folder / "policy")))
        with running(policy, folder, "none") as servers:
            reference = asyncio.run(reference_of(servers["none"].url))
        with running(policy, folder, "das", server={"low_bounds": True}) as servers:
            server = servers["das"]

            def watch(now: float, counts: Counts) -> None:
                row = {"minutes": now / 60, "complete": counts.complete, "aborted": counts.aborted}
                rows.append({**row, "tokens": counts.tokens, **server.resources(), **server.call("held")})
                if len(rows) % 5 == 0:
                    print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)

            counts = asyncio.run(soak(server.url, reference, minutes * 60, watch))
            metrics = server.metrics()
    warm = [row for row in rows if row["minutes"] >= minutes / 3]
    times, memory = (np.array([row[name] for row in warm]) for name in ("minutes", "anonymous_mib"))
    grown = growth(times, np.arange(len(warm)), memory)
    accepted, drafted = (metrics[f"vllm:spec_decode_num_{name}_tokens_total"] for name in ("accepted", "draft"))
    print(
        f"{counts.complete} requests complete, {counts.aborted} aborted, {counts.tokens} tokens, "
        f"{len(counts.wrong)} wrong; {drafted:.0f} drafted, {accepted:.0f} accepted; after a third of the time: "
        f"anonymous memory {grown['median']:.1f} MiB, {grown['percent_per_hour']:+.3f} % per hour, "
        f"files {min(row['files'] for row in warm):.0f} to {max(row['files'] for row in warm):.0f}"
    )
    return int(bool(counts.wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(parser.parse_args().minutes))
