"""Known warnings of other libraries are silent; others are not."""

import logging
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
