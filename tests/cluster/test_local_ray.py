"""A Ray of the run's own is reached from this machine alone, and leaves nothing. What cannot be joined is refused."""

import socket
import sys
import tempfile
import time
from glob import glob
from importlib.util import find_spec

import psutil
import pytest
from scripts import ROOT, run_script

from das.cluster.guard import writers
from das.cluster.local_ray import PREFIX, require_listener
from das.cluster.messages import ClusterError

OWN = """
import os, psutil, tempfile
from pathlib import Path
import ray as imported_before  # as vLLM does
from das.cluster.local_ray import PREFIX, connect, dead
from das.cluster.settings import ClusterSettings

ray, disconnect = connect(ClusterSettings(engines=1), 1, 0)
started = psutil.Process().children(recursive=True)
own = {process.pid for process in started} | {os.getpid()}
listening = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.pid in own]
assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} == {"127.0.0.1"}, listening
assert not dead(ray)
assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
next(process for process in started if process.name() == "gcs_server").kill()
while not dead(ray):
    pass
assert dead(ray) == "gcs_server"
disconnect()
alive = psutil.wait_procs(started, timeout=10)[1]
assert not alive, alive
assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*"))
"""

STARTING = """
from das.cluster.local_ray import connect
from das.cluster.settings import ClusterSettings

connect(ClusterSettings(engines=1), 1, 0)
"""
LEFT_S = 60  # seconds after which what a trainer left counts as left for good


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`")
def test_own_ray_is_reached_from_here_alone_and_leaves_nothing() -> None:
    run_script("-c", OWN)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`")
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("gcs_server", marks=pytest.mark.nightly),
        "raylet",
        pytest.param("ray::Runtime", marks=pytest.mark.nightly),
    ],
)  # names have 15 characters in the kernel
def test_a_trainer_killed_while_ray_starts_leaves_nothing(stage: str) -> None:
    trainer = psutil.Popen([sys.executable, "-c", STARTING], cwd=ROOT)
    while not any(child.name().startswith(stage) for child in trainer.children(recursive=True)):
        assert trainer.poll() is None
    trainer.kill()
    trainer.wait()
    prefix = f"{tempfile.gettempdir()}/{PREFIX}{trainer.pid}-"
    until = time.monotonic() + LEFT_S
    while glob(f"{prefix}*") or writers(prefix):
        assert time.monotonic() < until, (glob(f"{prefix}*"), writers(prefix))
        time.sleep(0.1)


def test_an_address_where_nothing_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_listener(f"127.0.0.1:{port}")
    with pytest.raises(ClusterError, match=rf"cluster.address=127.0.0.1:{port}: no Ray answers there"):
        require_listener(f"127.0.0.1:{port}")
