"""Code that comes with a model is never run: the one check of every setting by which it, a class, or a loader that
opens pickles could enter an engine or a trainer."""

from collections.abc import Iterator, Mapping
from typing import Any

from das.general.errors import EngineError

# vLLM's loaders that read .safetensors, or make the weights up.
LOADERS = (
    *("auto", "safetensors", "fastsafetensors", "mistral", "sharded_state"),
    *("runai_streamer", "runai_streamer_sharded", "dummy"),
)
_CODE = ("trust_remote_code", "allow_all_kernels")  # of vLLM, transformers and TRL
_SAFE = ("weights_only", "use_safetensors")  # of torch and transformers
# Classes that vLLM imports by the name that it is given.
_CLASSES = ("worker_cls", "worker_extension_cls", "scheduler_cls", "logits_processors", "model_class_overrides",
            "io_processor_plugin")  # fmt: skip
# Settings that name a class if there is a dot in them.
_WORDS = ("distributed_executor_backend", "backend")


def refuse_model_code(settings: Mapping[str, Any]) -> None:
    """Raise EngineError, with one line, if a setting, or one within it, would run code that comes with a model, open a
    pickle, or put another class in the place of das's."""
    for key, value in _leaves(settings):
        name = key.rpartition(".")[2]
        if problem := _problem(name, value):
            shown = str(value).lower() if isinstance(value, bool) else value
            raise EngineError(f"{key}={shown}: {problem}; leave it out")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _problem(name: str, value: Any) -> str:
    """Return why a setting is refused; empty if it is not."""
    if name in _CODE and value not in (False, None):
        return "code that comes with a model is never run"
    if name == "attn_implementation" and "/" in str(value):
        return "code of a hub repository is never run"
    if name in _SAFE and value not in (True, None):
        return "a pickle is never opened"
    if name == "load_format" and value is not None and value not in LOADERS:
        return f"weights are read by {', '.join(LOADERS)} alone"
    is_class = name in _CLASSES or name.endswith("_module_path") or (name in _WORDS and "." in str(value))
    if is_class and value not in (None, "", "auto"):
        return "an engine of das takes no class by its name"
    if name == "method" and value == "custom_class":
        return "name a drafter of yours with drafter, module:Class"
    return ""
