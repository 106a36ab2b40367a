"""Entry point `vllm.general_plugins`: vLLM calls it in every process that builds or runs an engine."""

import warnings


def register() -> None:
    """Patch vLLM in this process. The patches do nothing in engines without `additional_config={"das": ...}`.

    With a version of vLLM that das does not support this only warns, so that other engines run as before. An engine
    of das is refused later, by `patches.require_applied`.
    """
    from das.engine import patches
    from das.engine.versions import UnsupportedVersion

    try:
        patches.apply()
    except UnsupportedVersion as error:
        warnings.warn(f"das is not available in this process: {error}", RuntimeWarning, stacklevel=2)
