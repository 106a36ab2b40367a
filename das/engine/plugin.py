"""Entry point `vllm.general_plugins`: vLLM calls it in every process that builds an engine."""


def register() -> None:
    """Install the patches. They do nothing in engines without `additional_config={"das": ...}`."""
    from das.engine import patches

    patches.apply()
