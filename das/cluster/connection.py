"""Connect to a Ray that runs already, or start one that ends with this process.

ClusterSettings say which, and how many engines run on it.
"""

import math
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from das.general.errors import ClusterError, reason_of

MAX_ENGINES = 2**12


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster. Raises ValueError with a one-line message if a value is out of range.

    engines    number of engines
    address    HOST:PORT of a Ray that runs already; None: the one of RAY_ADDRESS if that is set, else a new Ray, which
               is started on this machine and ends with the run
    silent_s   seconds within which an engine must answer or finish a pass. An engine that does not is taken for dead
               and killed, and its requests start again elsewhere. The value must be larger than the slowest pass, than
               compiling and than loading weights
    start_s    seconds within which an engine must have started
    """

    engines: int = 2
    address: str | None = None
    silent_s: float = 60.0
    start_s: float = 600.0

    def __post_init__(self) -> None:
        if type(self.engines) is not int or not 1 <= self.engines <= MAX_ENGINES:
            raise ValueError(f"cluster.engines={self.engines}: must be a whole number from 1 to {MAX_ENGINES}")
        if self.address is not None and not re.fullmatch(r"[^:]+:\d{1,5}", str(self.address)):
            raise ValueError(f"cluster.address={self.address}: must be HOST:PORT of a Ray, as `ray start` prints it")
        for name in ("silent_s", "start_s"):
            seconds = getattr(self, name)
            if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
                raise ValueError(f"cluster.{name}={seconds}: must be seconds above 0")


ANSWER_S = 10.0  # seconds within which a process must accept a connection at an address


def connect(settings: ClusterSettings, cores: int) -> tuple[Any, bool]:
    """Connect to Ray: to the one that this process uses already, to the one with the address that is set, or to a new
    one on this machine. Returns the module `ray`, and whether to disconnect at the end.

    cores: of all engines together. Raises ClusterError if Ray does not answer or refuses the connection.
    """
    import ray

    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send statistics
    address = settings.address or os.environ.get("RAY_ADDRESS")
    if address is None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # engines would give way to whatever else runs
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")  # 20 s are too few on a busy machine
        # Ray listens at 127.0.0.1 alone if it takes itself for one that has no other nodes. Its processes read the
        # variable; this process may have imported Ray before, as vLLM does.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
        # Cores are only counted: engines may have more threads than there are cores.
        options |= {"include_dashboard": False, "num_cpus": max(cores, os.cpu_count() or 1)}
    elif settings.address is not None:
        require_listener(address)
    mode = os.environ.get("RAY_AUTH_MODE")
    try:
        with _own_end():
            _init(ray, address, options)
    finally:
        if mode is None:  # Ray sets it. A fork of a process that imported Ray before would go by it in part only
            os.environ.pop("RAY_AUTH_MODE", None)
    return ray, True


@contextmanager
def _own_end() -> Iterator[None]:
    """Inside the `with` block Ray takes SIGTERM for itself: it would end the process by SystemExit(15). A handler that
    this process has had before is put back, and hears of a signal that came in between."""
    before = signal.getsignal(signal.SIGTERM)
    if before == signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False
    try:
        yield
    except SystemExit:
        told = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if told:
        signal.raise_signal(signal.SIGTERM)


def _init(ray: Any, address: str | None, options: dict[str, Any]) -> None:
    for tries_left in (0,) if address else (1, 0):  # a new Ray has 30 s to start, which a busy machine may exceed
        try:
            ray.init(address=address or "local", **options)
            return
        except Exception as error:  # Ray raises bare ones, too
            if not tries_left:
                where = f"cluster.address={address}: Ray refuses the connection" if address else "Ray did not start"
                raise ClusterError(f"{where}: {reason_of(error)[:300]}") from error
            ray.shutdown()


def require_listener(address: str) -> None:
    """Raise ClusterError with a one-line message if nothing listens at an address. address: HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cluster.address={address}: no Ray answers there ({error})") from None
