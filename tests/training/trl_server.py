"""Start a server as docs/parallel.md says, and end it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

START_S = 300  # the longest that a server may take to start


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(policy: str, log: Path, *arguments: str) -> Iterator[str]:
    """A server of `policy` on this machine, as a URL. log: where its output goes."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", policy, "--port", str(port)]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(server, url, log)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if requests.get(f"{url}/health", timeout=5).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text()[-3000:])
