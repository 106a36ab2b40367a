"""How often the host waits for the device because of das, in a pass of the model runner.

The device does not exist. Its tensors compute on the CPU, and what the host would wait for is noted.
vLLM's part of a pass is left out.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from das.engine.requests import Request
from das.engine.runner.runner import Runner
from das.engine.runner.speculator import filled_up
from das.engine.runner.verifier import KeyedVerifier
from das.models.draft_passes import pass_inputs
from das.verify.noise import REJECTED
from tests.made_noise import torch_argmax

DEVICE = torch.device("meta")  # a type that no other tensor of these tests has, and for which torch needs no driver
ATEN = torch.ops.aten
SIZES_FROM_VALUES = (ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.masked_select.default)
LONGEST = 3
NAMES = ["a", "b", "c"]


class OnDevice(torch.Tensor):
    """A tensor of the device. value: the same on the CPU."""

    value: torch.Tensor

    def __new__(cls, value: torch.Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), dtype=value.dtype, device=DEVICE
        )
        made.value = value
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} outside of Device")


class Device(TorchDispatchMode):
    """While it is active, the device exists."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []  # for each wait of the host, what it waited for

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        to = kwargs.pop("device", None)
        is_there = any(isinstance(leaf, OnDevice) for leaf in tree_leaves((args, kwargs)))
        goes_there = to is not None and torch.device(to).type == DEVICE.type
        leaves = is_there and to is not None and not goes_there
        arrives = function is ATEN._to_copy.default and goes_there and not is_there
        if leaves or (is_there and function in SIZES_FROM_VALUES) or (arrives and not kwargs.get("non_blocking")):
            self.waits.append(str(function))
        args, kwargs = tree_map(lambda leaf: leaf.value if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
        found = function(*args, **kwargs)
        if (not is_there and not goes_there) or leaves:
            return found
        return tree_map(lambda leaf: OnDevice(leaf) if isinstance(leaf, torch.Tensor) else leaf, found)


class MadePass:
    """A pass of three requests in a Runner. num_drafted: drafted tokens of each request; None: nothing drafts. there:
    whether it runs on the device."""

    def __init__(self, num_drafted: list[int] | None, drafter: Any, there: bool):
        def both(array: np.ndarray) -> Any:
            tensor = torch.from_numpy(array)
            return SimpleNamespace(np=array, gpu=OnDevice(tensor) if there else tensor)

        counts = np.array(num_drafted or [0, 0, 0], np.int32)
        states = SimpleNamespace(
            temperature=both(np.array([1.0, 0.0, 0.7], np.float32)),
            seeds=both(np.array([7, 8, 9])),
            get_top_k_top_p=lambda *args: (None, None),
        )
        sampler = SimpleNamespace(sampling_states=states, apply_sampling_params=lambda logits, *args, **kwargs: logits)
        config = SimpleNamespace(
            additional_config={}, speculative_config=None, model_config=SimpleNamespace(max_model_len=9)
        )
        vllm: Any = SimpleNamespace(
            vllm_config=config,
            max_num_reqs=3,
            speculator=None,
            sampler=sampler,
            req_states=SimpleNamespace(prompt_len=both(np.array([4, 5, 6]))),
            sample=self.sample,
            output_copy_stream=None,
            scheduler_config=SimpleNamespace(async_scheduling=False),
            **dict.fromkeys(("load_model", "add_requests", "finish_requests", "profile_run")),
        )
        self.runner = Runner(vllm)
        self.runner.flights.drafter = drafter
        self.runner.flights.requests.known |= {name: Request(name, "p", 9) for name in NAMES}
        self.batch = SimpleNamespace(
            req_ids=NAMES,
            idx_mapping=torch.arange(3),
            idx_mapping_np=np.arange(3),
            num_computed_tokens_np=np.array([3, 4, 5]),
            num_scheduled_tokens=counts + 1,
            prefill_len_np=np.array([4, 5, 6]),
            num_draft_tokens_per_req=None if num_drafted is None else counts,
            num_draft_tokens=int(counts.sum()),
            cu_num_logits=torch.from_numpy(np.cumsum([0, *(counts + 1)])),
        )
        self.rows = np.repeat(np.arange(3), counts + 1)
        self.logits = torch.randn(len(self.rows), 50, generator=torch.Generator().manual_seed(0))

    def sample(self, logits: torch.Tensor, batch: Any, grammar: None) -> Any:
        """das's part of what vLLM's `sample` calls."""
        of_row, inputs, starts = torch.from_numpy(self.rows), torch.arange(len(logits)), batch.cu_num_logits
        pos = torch.from_numpy(np.array([3, 4, 5])[self.rows]) + inputs - starts[of_row]
        if isinstance(logits, OnDevice):
            of_row, inputs, starts, pos = map(OnDevice, (of_row, inputs, starts, pos))
            batch.cu_num_logits = starts
        if batch.num_draft_tokens_per_req is None:
            emitted = self.runner.draws.sample(logits, of_row, of_row, np.arange(3), pos, *[None] * 3)[0][:, None]
        else:
            verifier: Any = object.__new__(KeyedVerifier)  # its constructor wants all of vLLM's sampler
            verifier.draws, verifier.num_speculative_steps = self.runner.draws, LONGEST
            arguments = logits, None, inputs, pos, starts, of_row, np.arange(3), of_row, None, None, inputs
            emitted = verifier._verify(*arguments)[1]
        return SimpleNamespace(sampled_token_ids=emitted), (emitted != REJECTED).sum(dim=1, dtype=torch.int32), None


@pytest.mark.parametrize("num_drafted", [None, [2, 0, 3]])
@pytest.mark.parametrize(("drafter", "waits"), [(None, 0), (SimpleNamespace(remembers=False), 1)])
def test_only_a_drafter_waits_and_once(
    num_drafted: list[int] | None, drafter: Any, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the emitted tokens."""
    monkeypatch.setattr("das.verify.noise.device_argmax", torch_argmax)
    there, here = (MadePass(num_drafted, drafter, is_there) for is_there in (True, False))
    with Device() as device:
        output, *_ = there.runner._sample(OnDevice(there.logits), there.batch, None)
        there.runner.flights._read_earlier()
        filled_up([[1, 2], [], [3]], LONGEST, DEVICE)
    assert device.waits == ["aten._to_copy.default"] * waits
    on_host, *_ = here.runner._sample(here.logits, here.batch, None)
    assert output.sampled_token_ids.value.tolist() == on_host.sampled_token_ids.tolist()


def test_a_draft_pass_waits_for_no_copy() -> None:
    tables, positions = np.array([[3, 1], [2, 0]], np.int32), np.array([5, 3])
    with Device() as device:
        common, *there = pass_inputs(DEVICE, tables, 4, positions, np.array([7, 8]))
    assert not device.waits
    found = [tensor.value.tolist() for tensor in (common.slot_mapping, common.seq_lens, *there)]
    assert found == [[5, 11], [6, 4], [7, 8], [5, 3]]  # in block 1; in block 2
