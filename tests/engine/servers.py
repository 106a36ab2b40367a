"""vLLM's server with an engine of das, in processes of its own, and what tests ask of it."""

import json
import os
import runpy
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil

from experiments.run.processes import warm_context, warm_process

ROOT = Path(__file__).resolve().parents[2]
# Where this test's packages lie: those of other versions are not in .dev.
PATHS = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":")]
START_S = 600  # 15 on a quiet machine
END_S = 20.0  # within which all processes of a server end
PORT_TAKEN = "address already in use"  # another process took the port between our look and the server's start
# vLLM's own default, 0 seconds, kills an engine at its end, and leaves semaphores behind.
OPTIONS = shlex.split(
    "--dtype float32 --enforce-eager --max-model-len 256 --max-num-seqs 16 --gpu-memory-utilization 0.1 "
    "--distributed-executor-backend uni --disable-uvicorn-access-log --served-model-name policy "
    "--worker-extension-cls server_counts.Counts --shutdown-timeout 10"
)


def serve(words: list[str], log: Path, cold: bool) -> None:
    """Body of a process: `python -m WORDS`. cold: in a new interpreter; otherwise in this one, which has imported
    vLLM."""
    os.chdir(log.parent)
    with log.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if cold:
        os.execv(sys.executable, [sys.executable, "-m", *words])
    sys.path[:0] = os.environ["PYTHONPATH"].split(":")
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


class Server:
    """vLLM's own server with an engine of das. Its log is in `folder`. Call `wait` before its first use.

    method, options: of the one JSON, --speculative-config. further: other options of vLLM. cold: the server begins in a
    new interpreter and with all of its processes, as a user's does.
    """

    def __init__(
        self,
        policy: str,
        folder: Path,
        method: str,
        *further: str,
        options: Mapping[str, Any] | None = None,
        cold: bool = False,
    ):
        self.folder, self.log, self.cold = folder, folder / f"{method}.log", cold
        self.options = {"method": method, **(options or {})}
        # `vllm serve` needs a distribution named vllm; the build for CPUs has another name.
        self.command = ["vllm.entrypoints.openai.api_server", "--model", policy, *further, *OPTIONS]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
            "PYTHONPATH": ":".join(map(str, [*PATHS, ROOT / "tests", ROOT / "tests/engine"])),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker in the process of the engine: one process less to start
            "VLLM_SERVER_DEV_MODE": "1",  # for /collective_rpc
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",  # 5 s: a connection may be closed just when its client sends
            "HF_HUB_OFFLINE": "1",
        }
        if cold:
            del self.environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
        self.start()

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        warm_context()  # it keeps its environment, so it must not start in that of a server
        words = [*self.command, "--speculative-config", json.dumps(self.options), "--host", "127.0.0.1"]
        with patch.dict(os.environ, self.environment, clear=True):
            self.process = warm_process(serve, [*words, "--port", str(self.port)], self.log, self.cold)
        self.process.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> "Server":
        """Return when the server answers."""
        end, starts = time.monotonic() + START_S, 1
        while time.monotonic() < end:
            if self.process.exitcode is not None:
                said = self.log.read_text()
                if starts == 2 or PORT_TAKEN not in said.lower():
                    raise RuntimeError(f"the server ended: {said[-3000:]}")
                starts = 2
                self.start()
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.3)
        raise TimeoutError(f"no server after {START_S} s: {self.log.read_text()[-3000:]}")

    def call(self, method: str, *args: str) -> Any:
        """What a method of the worker returns."""
        body = {"method": method, "args": args}
        answer = httpx.post(f"{self.url}/collective_rpc", json=body, timeout=60).raise_for_status()
        return answer.json()["results"][0]

    def metrics(self) -> dict[str, float]:
        """vLLM's counters and gauges that have one value, without their labels."""
        lines = [line for line in httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines() if line[:1] != "#"]
        found: dict[str, float] = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            if name.startswith("vllm:"):
                found[name.partition("{")[0]] = float(value)
        return found

    def stop(self) -> None:
        """End the server, if it has not ended by itself. It must end whole, and leave nothing behind."""
        if self.process.exitcode is not None:
            return
        first = psutil.Process(self.process.pid)
        processes = [first, *first.children(recursive=True)]
        self.process.terminate()
        _, alive = psutil.wait_procs(processes, END_S)
        for process in alive:
            process.kill()
        self.process.join()
        said = self.log.read_text()
        assert not alive, said[-3000:]
        assert "leaked" not in said, said[-3000:]


@contextmanager
def running(
    policy: str, folder: Path, *methods: str, further: Sequence[str] = (), **options: Any
) -> Iterator[Mapping[str, Server]]:
    """Servers by method. further, options: see Server. They start at the same time and are stopped at the end."""
    servers: dict[str, Server] = {}
    with ExitStack() as stops:
        for method in methods:
            servers[method] = Server(policy, folder, method, *further, **options)
            stops.callback(servers[method].stop)
        for server in servers.values():
            server.wait()
        yield servers
