"""Silence what TRL, vLLM, torch and transformers say at every start, and is harmless with das. All else stays.

Each warning is named by the beginning of its text, so that a new one of the same library is seen.
"""

import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

from das.engine.versions import VLLM as CHECKED_VLLM

PYTHON = (  # (text, category)
    # das was checked with these versions of vLLM beside every version of TRL that it takes (das/engine/versions.py).
    (
        rf"TRL currently supports vLLM versions .* You have version ({'|'.join(map(re.escape, CHECKED_VLLM))})\b",
        UserWarning,
    ),
    # vLLM asks torch for a name that it does not use.
    (r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning),
)
VLLM = {  # logger -> texts
    "vllm.engine.arg_utils": ("The global random seed is set to",),  # das wants the engine in this process
    "vllm.config.vllm": ("Enforce eager set", "Inductor compilation was disabled"),  # the user or das chose it
    "vllm.config.speculative": ("Using a custom class-based proposer backend",),  # das's, checked with this vLLM
    "vllm.platforms.cpu": ("Triton is not installed", "Reset SSM cache type"),  # das uses neither on a CPU
    "vllm.triton_utils.importing": ("Triton is installed, but doesn't include CPU backend",),  # das brings the kernels
    "vllm.v1.worker.cpu_worker": (
        "libtcmalloc is not found",  # a hint about speed that das's measurements do without
        "libiomp is not found",
        "Speculative decoding on CPU without Intel OpenMP",
        "CPU backend doesn't allow to use `torch.set_num_threads`",  # das sets the threads before
    ),
}
BAR_S = 10.0  # seconds that transformers may load or save before it draws a bar


class _Known(logging.Filter):
    """Drops records whose text begins with a known one."""

    def __init__(self, texts: tuple[str, ...]):
        super().__init__()
        self._texts = texts

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._texts)


def silence_known() -> None:
    """Silence them in this process. A second call changes nothing. TRL warns when it is imported, so call it before."""
    for text, category in PYTHON:
        warnings.filterwarnings("ignore", message=text, category=category)
    for name, texts in VLLM.items():
        logger = logging.getLogger(name)
        if not any(isinstance(each, _Known) for each in logger.filters):
            logger.addFilter(_Known(texts))
    from transformers.utils.logging import set_tqdm_hook

    before = set_tqdm_hook(_late_bar)
    if before is not None:  # somebody else's
        set_tqdm_hook(before)


def _late_bar(make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make a bar of transformers ("Loading weights") that is drawn only if it takes long."""
    return make(*args, **{"delay": BAR_S, **options})
