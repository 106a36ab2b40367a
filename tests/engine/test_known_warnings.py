"""Known warnings of other libraries are silent; others are not."""

import logging
import subprocess
import sys
import warnings

import pytest

from das.known_warnings import PYTHON, VLLM, silence_known


def test_only_known_warnings_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence_known()
        warnings.warn("TRL currently supports vLLM versions from 1 to 2. You have 3.", UserWarning, stacklevel=1)
        warnings.warn("TRL will drop this next year", UserWarning, stacklevel=1)
    assert [str(each.message) for each in caught] == ["TRL will drop this next year"]
    silence_known()
    for name, texts in VLLM.items():
        logger = logging.getLogger(name)
        assert len(logger.filters) == 1, "once, however often it is called"
        with caplog.at_level(logging.WARNING, logger=name):
            logger.propagate = True
            for text in texts:
                logger.warning("%s and more", text)
            logger.warning("something new")
    assert [record.getMessage() for record in caplog.records] == ["something new"] * len(VLLM)
    assert len(PYTHON) == 2


def test_engines_that_did_not_ask_keep_their_warnings() -> None:
    """vLLM loads das's plug-in in every process, also in one that never asks for das."""
    code = (
        "import logging, warnings; before = list(warnings.filters); import das, das.engine.plugin; "
        "from das.known_warnings import VLLM; assert warnings.filters == before; "
        "assert not any(logging.getLogger(name).filters for name in VLLM)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
