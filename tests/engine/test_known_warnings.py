"""Known warnings of other libraries are silent; others are not. Engines that did not ask: test_harm_nobody.py."""

import logging
import warnings

import pytest

from das.engine.versions import IN_LOGS, silence_known


def test_only_known_warnings_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence_known.__wrapped__()  # though another test called it
        supported = "TRL currently supports vLLM versions from 0.22.0 to 0.31.0. You have version"
        warnings.warn(f"{supported} 0.32.0 installed. We recommend", UserWarning, stacklevel=1)
        seen = ["TRL will drop this next year", f"{supported} 0.99.0 installed."]
        for text in seen:
            warnings.warn(text, UserWarning, stacklevel=1)
    assert [str(each.message) for each in caught] == seen
    silence_known()
    silence_known()
    for name, texts in IN_LOGS.items():
        logger = logging.getLogger(name)
        with caplog.at_level(logging.WARNING, logger=name):
            logger.propagate = True
            for text in texts:
                logger.warning("%s and more", text)
            logger.warning("something new")
    assert [record.getMessage() for record in caplog.records] == ["something new"] * len(IN_LOGS)
