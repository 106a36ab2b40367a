"""Silence warnings of TRL, vLLM and torch that are known to be harmless with das. All other warnings stay.

Each is named by the beginning of its text, so that a new warning of the same library is seen.
"""

import logging
import warnings

PYTHON = (  # (text, category)
    # das is tested with this pair of versions (das/engine/versions.py).
    ("TRL currently supports vLLM versions", UserWarning),
    # vLLM asks torch for a name that it does not use.
    (r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning),
)
VLLM = {  # logger -> texts
    "vllm.engine.arg_utils": ("The global random seed is set to",),  # das wants the engine in this process
    "vllm.config.vllm": ("Enforce eager set", "Inductor compilation was disabled"),  # the user or das chose it
    "vllm.platforms.cpu": ("Triton is not installed", "Reset SSM cache type"),  # das uses neither on a CPU
    "vllm.v1.worker.cpu_worker": (
        "libtcmalloc is not found",  # a hint about speed that das's measurements do without
        "libiomp is not found",
        "CPU backend doesn't allow to use `torch.set_num_threads`",  # das sets the threads before
    ),
}


class _Known(logging.Filter):
    """Drops records whose text begins with a known one."""

    def __init__(self, texts: tuple[str, ...]):
        super().__init__()
        self._texts = texts

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._texts)


def silence_known() -> None:
    """Silence them in this process. A second call changes nothing."""
    for text, category in PYTHON:
        warnings.filterwarnings("ignore", message=text, category=category)
    for name, texts in VLLM.items():
        logger = logging.getLogger(name)
        if not any(isinstance(each, _Known) for each in logger.filters):
            logger.addFilter(_Known(texts))
