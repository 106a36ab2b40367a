"""Settings of a cluster of engines."""

import math
import re
from dataclasses import dataclass

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
