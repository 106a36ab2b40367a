"""vLLM's own drafters beside das: they change no token either, and what they refuse they still refuse."""

from typing import Any

import pytest
import torch
from cases import Case, answers
from conftest import Engines, in_a_fork
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

SPECULATIVE: dict[str, dict[str, Any]] = {
    "ngram": {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"num_speculative_tokens": 8},
}
# Requests that these drafters support.
BATCH = [
    Case(i % 4, {"temperature": (0.0, 0.3, 0.7, 1.0)[i % 4], "ignore_eos": True, "seed": i, "max_tokens": 40})
    for i in range(24)
]


def in_its_own_process(policy: str, method: str) -> tuple[list[Any], list[Any], int, str, int]:
    """The answers without drafts and with them, how many drafted tokens were accepted, the error message for min_p, and
    torch's threads afterwards.

    These drafters import numba, after which vLLM 0.32 cannot build another engine in the same process.
    """
    engines = Engines()
    undrafted, _ = answers(engines.build(policy), BATCH)
    llm = engines.build(policy, method=method, speculative=SPECULATIVE[method])
    drafted, report = answers(llm, BATCH)
    refusal = ""
    try:
        llm.generate([{"prompt_token_ids": [5]}], SamplingParams(min_p=0.1), use_tqdm=False)
    except VLLMValidationError as error:
        refusal = str(error)
    return undrafted, drafted, report["accepted"], refusal, torch.get_num_threads()


@pytest.mark.slow
@pytest.mark.parametrize("method", SPECULATIVE)
def test_drafts_change_nothing_and_refusals_are_kept(tiny_policy: str, method: str) -> None:
    if method == "suffix":
        pytest.importorskip("arctic_inference")  # `make peers` installs it
    undrafted, drafted, num_accepted, refusal, threads = in_a_fork(in_its_own_process, tiny_policy, method)
    assert drafted == undrafted
    assert num_accepted > 20
    assert "min_p" in refusal
    assert threads == 1  # with numba's two, a trainer beside the engine would sum in another order
