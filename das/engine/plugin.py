"""Entry point `vllm.general_plugins`: vLLM calls it in every process that builds or runs an engine."""

import warnings


def register() -> None:
    """Let this process's front end check the requests of engines of das, and its arguments ask for one in one JSON
    (install.py). Other engines stay as they are.

    If das does not support the version of vLLM, this function only warns. An engine that asks for das is refused later,
    by its worker (das/engine/worker.py).
    """
    from das.engine.install import take_one_json
    from das.engine.patches.front_end import patch_front_end
    from das.engine.versions import UnsupportedVersion

    try:
        patch_front_end()
        take_one_json()
    except UnsupportedVersion as error:
        warnings.warn(f"das is not available in this process: {error}", RuntimeWarning, stacklevel=2)
