"""Tokens set aside that are no tokens are refused. That they change no token: tests/identity/."""

from typing import Any

import pytest
from conftest import Engines
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from das.verify.admission import SET_ASIDE_KEY


@pytest.mark.parametrize("given", ["abc", [1.5], [-1], [2**31], [True], 3])
def test_refused(given: Any, engines: Engines, tiny_policy: str) -> None:
    llm = engines.llm or engines.build(tiny_policy)
    with pytest.raises(VLLMValidationError, match="das_set_aside must be a list of token ids"):
        llm.generate([{"prompt_token_ids": [5]}], SamplingParams(extra_args={SET_ASIDE_KEY: given}), use_tqdm=False)
