"""A config as plain Python values."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(node: DictConfig) -> dict[str, Any]:
    """A config, or one of its groups, as a dict of plain values, with interpolations resolved."""
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
