"""Read problem sets from the Hugging Face hub through `datasets`. Without a network, read them from its cache."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from experiments.run.errors import UserError

_PATIENCE_S = 5.0  # seconds to wait for the hub's first answer; its own client tries six times, for 23 s or more
# Errors of `datasets` and its client for a set that cannot be loaded. RuntimeError means that the set is a script.
_FAILURES = (OSError, ValueError, RuntimeError, DatasetsError, HTTPError)


def rows(name: str, subsets: Sequence[str], split: str, revision: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the subsets, one subset after the other. Code that belongs to the set is never run.

    name: the set's id on the hub. Raises UserError if the set cannot be loaded.
    """
    with _offline_if(not _answers()):
        try:
            parts = [datasets.load_dataset(name, subset, split=split, revision=revision) for subset in subsets]
        except _FAILURES as error:
            raise UserError(_explanation(name, error)) from error
    for part in parts:
        yield from part


def check(name: str, revision: str) -> None:
    """Raise UserError if the hub does not answer and the cache does not have the set. Call it before any work."""
    if _answers():
        return
    with _offline_if(True):
        try:
            datasets.get_dataset_config_names(name, revision=revision)
        except _FAILURES as error:
            raise UserError(_explanation(name, error)) from error


def _explanation(name: str, error: Exception) -> str:
    offline = isinstance(error, ConnectionError)  # datasets found the set neither on the hub nor in its cache
    reason = "the Hugging Face hub cannot be reached, and the set is not in its cache" if offline else str(error)
    return (
        f"{name} cannot be loaded: {' '.join(reason.split())[:300]}; if you have a copy on disk, set data.path=FILE "
        "(.parquet, .jsonl, .json, .jsonl.gz or .json.gz)"
    )


def _answers() -> bool:
    """Return whether the hub answers, with any status. Respects HF_ENDPOINT, proxies and HF_HUB_OFFLINE."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=_PATIENCE_S)
    except (HTTPError, ConnectionError):
        return False
    return True


@contextmanager
def _offline_if(offline: bool) -> Iterator[None]:
    """Inside the `with` block, if `offline`, `datasets` and `huggingface_hub` use only their caches, not the
    network."""
    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    if offline:
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before
