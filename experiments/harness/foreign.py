"""What a run folder that somebody else made may not do: run code, or lead out of the folder (docs/exactness.md)."""

import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from experiments.run.errors import CONFIGS, UserError
from experiments.run.plain import plain
from experiments.settings.config import RunConfig

_NAMED = re.compile(r"([^\W\d]\w*(?:\.\w+)*):\w+")  # module:Class
_WANDB = "wandb"  # W&B's own folder; its links to its logs lead out of the run folder


# ---- whose settings ----


def signature(overrides: Sequence[str]) -> str:
    """Return this user's signature of a run's overrides. Empty where the user has no home to keep a key in."""
    key = _key(make=True)
    return _signed(key, overrides) if key else ""


def is_own(overrides: Sequence[str], signed: str) -> bool:
    """Return whether this user signed these overrides."""
    key = _key(make=False)
    return bool(key) and hmac.compare_digest(_signed(key, overrides).encode(), signed.encode(errors="replace"))


def _signed(key: bytes, overrides: Sequence[str]) -> str:
    return hmac.new(key, json.dumps(list(overrides)).encode(), hashlib.sha256).hexdigest()


def key_file() -> Path:
    """Return the path of the key with which this user signs. It is in no run folder, so no folder can bring it."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "das" / "key"


def _key(make: bool) -> bytes:
    """Return the user's key; empty if there is none. make: make it if it is missing."""
    try:
        path = key_file()
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, new = tempfile.mkstemp(dir=path.parent)  # readable by the user alone
            os.write(handle, secrets.token_bytes(32))
            os.close(handle)
            with suppress(FileExistsError):  # another process was faster
                os.link(new, path)
            os.unlink(new)
        return path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return b""


# ---- code ----


def refuse_modules(config: RunConfig, folder: Path) -> None:
    """Refuse a setting module:Class whose module lies in the run folder or among run folders: whoever made the folder
    wrote it. Nothing is imported. Raises UserError."""
    home = CONFIGS.parent
    among = (folder, home / "outputs", Path(config.out))
    places = [each for place in among for each in {place.absolute(), place.resolve()} if not home.is_relative_to(each)]
    for key, text in _texts(config.resolved):
        named = _NAMED.fullmatch(text)
        for path in _files(named[1]) if named else ():
            if any(each.is_relative_to(place) for each in (path.absolute(), path.resolve()) for place in places):
                raise UserError(
                    f"{key}={text}: {path} is in a folder of runs, from which no code is run; move the module "
                    "elsewhere, and put its folder on PYTHONPATH"
                )


def _texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for every text in a config, those in lists included."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _texts(value, f"{key}.{name}".removeprefix("."))
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, key)
    elif isinstance(node, str):
        yield key, node


def _files(module: str) -> Iterator[Path]:
    """Yield the files and folders in which Python would look for a module, whether they exist or not."""
    first, *parts = module.split(".")
    try:
        spec = find_spec(first)  # imports nothing, because the name has no dot
    except ValueError:  # __main__
        return
    if spec is None:
        return
    if spec.has_location and spec.origin:
        yield Path(spec.origin)
    for place in spec.submodule_search_locations or ():
        for end in range(len(parts) + 1):
            path = Path(place, *parts[:end])
            yield from (path, path.with_name(f"{path.name}.py"))


# ---- links ----


def refuse_links(folder: Path) -> None:
    """Refuse a run folder with a symbolic link that leads out of it: the run would write, empty or delete what lies
    there. The same for a pipe or a device, on which it would wait. Raises UserError."""
    inside = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if not (path.is_symlink() or path.is_dir() or path.is_file()):
                raise UserError(f"{path} is neither a file nor a folder: remove it")
            if path.is_symlink() and not _leads_into(path, inside):
                raise UserError(
                    f"{path} is a link that leads out of the run folder, to {os.readlink(path)}: nothing is written "
                    "or deleted there; put a file or folder in its place"
                )
        if _WANDB in folders:
            folders.remove(_WANDB)


def _leads_into(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # links in a circle
        return False


# ---- the config that a folder records ----


def refuse_environment(config: DictConfig | ListConfig) -> None:
    """Refuse a recorded config.yaml that calls a function, such as ${oc.env:NAME}. Raises ValueError."""
    for key, text in _texts(OmegaConf.to_container(config)):
        if ":" in text.partition("${")[2]:
            raise ValueError(f"{key} asks for more than the settings beside it")


def own_classes(config: DictConfig) -> list[str]:
    """Return the classes module:Class that a recorded config names and this process has not loaded, because its own
    command line does not name them. Nobody else's word loads them."""
    texts = [text for key, text in _texts(plain(config)) if key.startswith(("drafter.", "budget.", "arm."))]
    named = map(_NAMED.fullmatch, texts)
    return sorted({found[0] for found in named if found and found[1] not in sys.modules})
