"""Requests that an engine refuses. tests/engine/test_server.py sends more of them to a server."""

from types import SimpleNamespace

import pytest
from vllm.exceptions import VLLMValidationError

from das.drafter.texts import private_id
from das.verify.admission import PROBLEM_KEY, admit


@pytest.mark.parametrize("problem", [private_id("a", "p"), "private:", "private:0:p"])
def test_no_id_names_the_history_of_another_salt(problem: str) -> None:
    params = SimpleNamespace(seed=None, n=1, extra_args={PROBLEM_KEY: problem})
    words = "ids that begin with 'private:' are those of requests with a cache_salt"
    with pytest.raises(VLLMValidationError, match=words) as error:
        admit(params)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("problem", ["privates", "my private:", "Private:", ""])
def test_other_ids_are_taken(problem: str) -> None:
    admit(SimpleNamespace(seed=None, n=1, extra_args={PROBLEM_KEY: problem}))
