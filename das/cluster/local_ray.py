"""Connect to a Ray that runs already, or start a Ray that ends with this process and leaves nothing behind."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import das
from das.cluster.guard import start_guard
from das.cluster.messages import ClusterError
from das.cluster.settings import ClusterSettings
from das.engine.versions import require_ray

PREFIX = "das-ray-"  # folders of local Rays: das-ray-PID-..., in the folder for temporary files
ANSWER_S = 10.0  # seconds within which a process must accept a connection at an address
CONNECT_S = 60.0  # seconds within which a Ray must accept a process; this includes the time to import Ray
GCS_S = 24 * 3600  # seconds until Ray ends a process that cannot reach the gcs_server; `dead` looks sooner
REFUSED = "refused: "
TRY = f"""
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit("{REFUSED}" + " ".join(str(error).split()))
"""
STORE_BYTES = 256 * 2**20  # room in the object store for responses and histories, besides three copies of the weights


def connect(settings: ClusterSettings, threads: int, weights_bytes: int) -> tuple[Any, Callable[[], None]]:
    """Connect to Ray. Returns the module `ray` and a function that disconnects and cleans up, at exit at the latest.

    threads: number of cores of each engine. weights_bytes: size of the policy.
    Raises UnsupportedVersion for a version of Ray that das does not know, ClusterError if Ray is not installed, does
    not answer or refuses the connection.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send statistics
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")  # 20 s are too few on a busy machine
    os.environ.setdefault("RAY_worker_niceness", "0")  # engines would give way to whatever else runs
    # 60 s after its gcs_server died, Ray would end this process with a message of its own, even during training.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(GCS_S))
    try:
        import ray
    except ModuleNotFoundError:
        raise ClusterError("a cluster needs ray, which is not installed: run `make ray`") from None
    require_ray()
    if ray.is_initialized():
        raise ClusterError("this process is connected to Ray already: call ray.shutdown() before the trainer is built")
    if settings.address is None:
        _use_own_token()
        _use_loopback(ray)
        return ray, _start(ray, settings.engines * threads, weights_bytes)
    _require_answer(settings.address)
    try:
        ray.init(address=settings.address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises many kinds: another version, a wrong token, a node that starts
        why = " ".join(str(error).split())[:300]
        raise ClusterError(f"cluster.address={settings.address}: Ray refuses the connection: {why}") from error
    return ray, _at_exit(ray, None)


def _use_own_token() -> None:
    """Make this process's Ray require a token of das. Otherwise Ray would write its own token into the home folder."""
    from ray._raylet import AuthenticationTokenLoader, Config

    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    # vLLM has imported Ray, which read the environment at that time. These calls make Ray read it again.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _use_loopback(ray: Any) -> None:
    """Let this process's Ray listen at 127.0.0.1 only. By default, Ray uses the machine's own address on Linux."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported; its processes inherit it
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False


def _start(ray: Any, cores: int, weights_bytes: int) -> Callable[[], None]:
    """Start a Ray that only this machine can reach."""
    sweep()
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    here = str(Path(das.__file__).parents[1])
    paths = [here, *(str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    scratch = Path(folder) / "tmp"
    scratch.mkdir()
    guard = start_guard(folder)
    try:
        ray.init(
            address="local",
            # Cores are only counted. An engine that starts while another one is being killed must find room.
            num_cpus=2 * max(cores, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=STORE_BYTES + 3 * weights_bytes,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(scratch)}},
        )
    except Exception as error:
        guard.communicate()
        raise ClusterError(f"Ray did not start: {' '.join(str(error).split())[:300]}") from error
    return _at_exit(ray, guard)


def _at_exit(ray: Any, guard: "subprocess.Popen[bytes] | None") -> Callable[[], None]:
    def disconnect() -> None:
        ray.shutdown()
        if guard is not None:
            guard.communicate()  # closes its input, and waits for it

    return weakref.finalize(ray, disconnect)


def dead(ray: Any) -> str:
    """Returns the name of a dead process of Ray without which nothing can start; empty if all are alive.

    If others started Ray, only its gcs_server is checked: something must listen at its address.
    """
    node = ray._private.worker._global_node
    if node.all_processes:
        gone = [name for name, _ in node.dead_processes() if name in ("gcs_server", "raylet")]
        return gone[0] if gone else ""
    try:
        require_listener(node.gcs_address)
    except ClusterError as error:
        return f"gcs_server ({error})"
    return ""


def sweep() -> None:
    """Remove the folders of local Rays whose process was killed together with its guard."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def require_listener(address: str) -> None:
    """Raise ClusterError with a one-line message if nothing listens at an address. address: HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cluster.address={address}: no Ray answers there ({error})") from None


def _require_answer(address: str) -> None:
    """Raise ClusterError with a one-line message unless a process of this machine can connect to a Ray at the address.

    A child process tries it, because Ray would end this process or try for minutes.
    """
    require_listener(address)
    refusal = f"no Ray answered within {CONNECT_S:g} s; does another program listen there?"
    with subprocess.Popen([sys.executable, "-c", TRY, address], stderr=subprocess.PIPE, text=True) as child:
        overdue = threading.Timer(CONNECT_S, child.kill)
        overdue.start()
        assert child.stderr is not None
        for line in child.stderr:
            if "InvalidAuthToken" in line:
                refusal = "it asks for another token: set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH as on its nodes"
                child.kill()
            elif line.startswith(REFUSED):
                refusal = line.removeprefix(REFUSED).strip()[:300]
        overdue.cancel()
    if child.returncode:
        raise ClusterError(f"cluster.address={address}: {refusal}")


def one_line(error: Exception) -> str:
    """Returns the message of one of Ray's errors, as one line."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
    text = " ".join(str(error).split())
    return "its process died" if "died" in text.lower() else f"{type(error).__name__}: {text[:300]}"
