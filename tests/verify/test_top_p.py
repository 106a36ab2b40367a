"""Top-k and top-p: the same tokens whatever the other rows are, in bounded memory."""

import weakref
from typing import Any

import pytest
import torch
from plain_batch import PlainRunner
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm import SamplingParams

from das.verify import top_p as top_p_module
from das.verify.top_p import SORTED_CELL_BYTES

ORDINARY = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "logprobs": 0}  # what training asks for


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that were made inside and are still there; `most` is the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs or {}))
            if isinstance(leaf, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                key = storage._cdata
                if key not in self._known and key not in before:
                    self._known.add(key)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
def test_the_memory_of_a_pass_is_what_the_profile_counts(mode: str) -> None:
    """vLLM keeps the pieces of a pass small; of a piece, the profile counts SORTED_CELL_BYTES a logit."""
    vocab, requests = 4000, 30
    params = [SamplingParams(seed=i, **ORDINARY) for i in range(requests)]
    runner = PlainRunner(params, vocab, 6, logprobs_mode=mode)
    logits = torch.randn(requests * 7, vocab, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with LiveBytes() as count:
        runner.sample(logits, [[1] * 6] * requests)
    assert count.most < logits.numel() * SORTED_CELL_BYTES


@pytest.mark.parametrize(("rows", "vocab", "groups"), [
    (1, 151_936, [2]), (2, 151_936, [2]), (147, 151_936, [147]), (295, 151_936, [147, 147, 2]),
    (129, 32_000, [64, 64, 2]),
])  # fmt: skip
def test_top_p_sums_every_row_by_one_algorithm_on_a_gpu(
    rows: int, vocab: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's cumulative sum of a row on a GPU depends on how many rows there are (ScanUtils.cuh, by reading). Sorting
    147 rows takes SAMPLER_BYTES."""
    seen: list[int] = []

    def counted(logits: torch.Tensor, top_k: Any, top_p: torch.Tensor) -> torch.Tensor:
        assert len(top_p) == len(logits)
        seen.append(len(logits))
        return logits

    monkeypatch.setattr(top_p_module, "apply_top_k_top_p_pytorch", counted)
    logits, top_p = torch.empty(rows, vocab, device="meta"), torch.empty(rows, device="meta")
    assert top_p_module.keep_likeliest(logits, None, top_p).shape == logits.shape
    assert seen == groups


def test_groups_of_rows_keep_the_same_tokens() -> None:
    logits = torch.randn(5, 600, generator=torch.Generator().manual_seed(0))
    top_k, top_p = torch.tensor([3, 600, 40, 9, 600]), torch.tensor([2.0, 0.7, 0.9, 0.2, 0.5])
    whole = top_p_module.keep_likeliest(logits.clone(), top_k, top_p)
    for most in (2, 4, 5):
        assert torch.equal(top_p_module.in_groups(logits.clone(), top_k, top_p, most), whole)
