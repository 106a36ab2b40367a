"""Everything at once: a server floods, syncs and dies, a training beside it dies. No wrong token, and nothing grows.

PYTHONPATH=.dev:.:tests .venv/bin/python tests/engine/server_soak.py 30   minutes

200 clients who abort at random use a server with drafts. It gets other weights and back, saves its history, is
killed, also amid both, and starts again with this history; a damaged copy is refused. Every answer is that of a
server without drafts and with the same weights. In the last third of the time nothing is killed, so that memory can
be seen over longer. Beside it task=kill_test kills, damages and resumes a training. Prints a row every ten seconds,
then the verdict.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import torch
from requests import RequestException
from safetensors.torch import load_file
from scripts import ROOT
from server_clients import LOST, Counts, Reference, Service, reference_of, soak
from servers import Server, running

from das.engine.patches.weights import WEIGHT_TRANSFER
from das.errors import EngineError
from das.trl.engines.server_client import ServerClient

TRANSFER = ("--weight-transfer-config", json.dumps({"backend": WEIGHT_TRANSFER}))  # an option of every server here
FRONT, ENGINE = "python", "VLLM::Engine"  # names of a server's processes
TRAINING = (
    "task=kill_test", "task.runs=1", "wandb=off", "reward=brevity", "trainer.learning_rate=0.001",
)  # fmt: skip
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
            left = await asyncio.to_thread(self.server.kill, victim)
            if left:
                self.wrong.append(f"{victim} was killed and left {left}")
            saved = self.history.exists()
            if saved:
                await asyncio.to_thread(self.refuse_damage)
            self.server.start(*self.options(self.history) if saved else ())
            await asyncio.to_thread(self.server.wait)
            service.version = 0
        service.up.set()
        if acting:
            (error,) = await asyncio.gather(acting, return_exceptions=True)
            expected = type(error) in (type(None), Exception) or isinstance(error, ENDED)
            if not expected:
                self.wrong.append(f"{amid} amid a kill: {error!r}")
        self.done[f"kills ({victim}{', amid ' + amid.__name__ if amid else ''})"] += 1

    def options(self, history: Path) -> tuple[str, str]:
        return "--drafter", json.dumps({**self.drafter, "warm": str(history)})

    def refuse_damage(self) -> None:
        """Start the server with a history of which a bit was changed, or an end is lost."""
        content = bytearray(self.history.read_bytes())
        # Among the tokens: nothing checks all bits of the heads of the files in a zip, and nothing reads them.
        at = self.draw.randrange(content.index(b"tokens.npy") + 200, content.index(b"lengths.npy") - 40)
        content[at] ^= 1
        damaged = self.history.with_name("damaged.npz")
        damaged.write_bytes(content[: self.draw.choice((at, len(content)))])
        code, said = self.server.refusal(*self.options(damaged))
        if code != 2 or len(said) != 1 or damaged.name not in said[0]:
            self.wrong.append(f"a damaged history: {code}, {said}")
        self.done["damaged"] += 1

    async def for_a_time(self, kills_until_s: float, goes_on: Callable[[], bool]) -> None:
        """Something every few seconds; kills for the first `kills_until_s` seconds only."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while goes_on():
            for act in (self.sync, self.save, self.sync, self.kill):
                await asyncio.sleep(self.draw.uniform(0, 20))
                if goes_on() and (act != self.kill or loop.time() - began < kills_until_s):
                    await act()


def post(url: str) -> None:
    httpx.post(url, timeout=300).raise_for_status()


def main(minutes: float, settings: Sequence[str]) -> int:
    """Soak a server and a training with a random policy, and print what became of them. Returns 1 if any was wrong.

    settings: further ones of task=kill_test.
    """
    from conftest import random_policy, sharpened

    from analysis.soak import growth
    from experiments.run import child

    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = sharpened(Path(random_policy(folder / "policy")))
        weights = versions(policy)
        with running(policy, folder, "none", further=TRANSFER) as servers:
            references = references_of(servers["none"], weights)
        seconds = minutes * 60
        training = child.start(
            [sys.executable, str(ROOT / "run.py"), *TRAINING, f"task.minutes={round(minutes * 0.6)}",
             f"policy.path={policy}", f"hydra.run.dir={folder / 'killed'}", *settings]
        )  # fmt: skip
        with running(policy, folder, "das", further=TRANSFER, server={"low_bounds": True}) as servers:
            service = Service(servers["das"], references)
            trouble = Trouble(service, weights, {}, random.Random(0))

            def watch(now: float, counts: Counts) -> None:
                seen = {**service.server.resources(), **service.server.call("held")}
                row = {"minutes": now / 60, "kills": service.kills, "complete": counts.complete, "lost": counts.lost}
                rows.append({**row, "aborted": counts.aborted, "tokens": counts.tokens, **seen})
                if len(rows) % 5 == 0:
                    print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)

            counts = asyncio.run(
                soak(service, seconds, watch, lambda goes_on: trouble.for_a_time(seconds * 2 / 3, goes_on))
            )
        said, errors = training.communicate()
    left = [one.name() for one in psutil.Process().children(recursive=True)]
    wrong = [*counts.wrong, *trouble.wrong, *([errors] if training.returncode else []), *left]
    print(*said.splitlines(), *wrong, sep="\n")
    warm = [row for row in rows if row["minutes"] >= rows[-1]["minutes"] * 7 / 9]
    times, memory = (np.array([row[name] for row in warm]) for name in ("minutes", "anonymous_mib"))
    grown = growth(times, np.arange(len(warm)), memory)
    print(
        f"{counts.complete} requests complete, {counts.aborted} aborted, {counts.lost} lost by kills, {counts.tokens} "
        f"tokens; {dict(trouble.done)}; {len(wrong)} wrong; in the last 2/9 of the time anonymous memory "
        f"{grown['median']:.1f} MiB, {grown['percent_per_hour']:+.3f} % per hour, "
        f"files {min(row['files'] for row in warm):.0f} to {max(row['files'] for row in warm):.0f}"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("settings", nargs="*", help="further ones of task=kill_test")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments = parser.parse_args()
    sys.exit(main(arguments.minutes, arguments.settings))
