"""Problem sets from the Hugging Face hub, by `datasets`; without the network, from its cache."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from experiments.run.errors import UserError

_PATIENCE_S = 5.0  # for the hub's first answer; its client by itself tries six times over 23 s or more
_FAILURES = (OSError, ValueError, RuntimeError, DatasetsError, HTTPError)  # RuntimeError: a set that is a script


def rows(name: str, subsets: Sequence[str], split: str, revision: str) -> Iterator[dict[str, Any]]:
    """Rows of the subsets, one after the other. No code of the set's own is run.

    name: id on the hub. Raises UserError, in one line, where the hub or the set cannot be had.
    """
    with _offline_if(not _answers()):
        try:
            parts = [datasets.load_dataset(name, subset, split=split, revision=revision) for subset in subsets]
        except _FAILURES as error:
            raise UserError(_why(name, error)) from error
    for part in parts:
        yield from part


def check(name: str, revision: str) -> None:
    """Raise UserError if neither the hub answers nor the cache has the set; before any work is done."""
    if _answers():
        return
    with _offline_if(True):
        try:
            datasets.get_dataset_config_names(name, revision=revision)
        except _FAILURES as error:
            raise UserError(_why(name, error)) from error


def _why(name: str, error: Exception) -> str:
    offline = isinstance(error, ConnectionError)  # neither the hub nor its cache
    said = "the Hugging Face hub is out of reach, and the set is not in its cache" if offline else str(error)
    return (
        f"{name} cannot be had: {' '.join(said.split())[:300]}; with a copy of it on disk, set data.path=FILE "
        "(.parquet, .jsonl or .json, .gz too)"
    )


def _answers() -> bool:
    """Whether the hub answers at all, whatever it says. HF_ENDPOINT, proxies and HF_HUB_OFFLINE count."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=_PATIENCE_S)
    except (HTTPError, ConnectionError):
        return False
    return True


@contextmanager
def _offline_if(offline: bool) -> Iterator[None]:
    """Both libraries in their offline mode, in which they look into the cache at once."""
    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    if offline:
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before
