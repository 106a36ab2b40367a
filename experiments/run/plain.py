"""Convert a config to plain Python values."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(node: DictConfig) -> dict[str, Any]:
    """Convert a config, or one of its groups, to a dict of plain values, with interpolations resolved."""
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
