"""The weight check: after each sync, the engine must hold the trainer's weights, bit for bit, and nothing older.

Every sync compares a sample of the trainer's tensors with what the engine holds and computes with. Ranks exchange the
result: if one finds an error, all stop.

vLLM's own `load_weights` knows where a tensor lands: it merges q, k and v, pads vocabularies, cuts slices, converts
types, renames. None of that is repeated here. A tensor is checked by loading it a second time: if it had arrived the
first time, no bit of the engine changes.

A fingerprint tells whether weights are still the same, without a copy of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from das.general import ranks
from das.general.errors import EngineError, WeightSyncError, reason_of

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # an integer of each size, by bytes
PACKED_COLUMNS = 64  # columns of a packed copy that a check reads; reading all would cost more than a training step


def fingerprint(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Returns a number for each tensor: the sum of its bits, read as integers.

    It reads each tensor once, where it lies: 23 ms for 135 million weights in float32 on one core. Of a sharded tensor
    it reads this rank's shard.
    """
    sums = [_sum_of_bits(_own_part(tensor).detach()) for tensor in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for device in {each.device for each in sums}:  # one wait for each device
        by_device[device] = torch.stack([each for each in sums if each.device == device]).tolist()
    return tuple(by_device[each.device].pop(0) for each in sums)


def _own_part(tensor: Any) -> torch.Tensor:
    """Returns what this rank has of a tensor that FSDP 2 or ZeRO-3 may have sharded."""
    return getattr(tensor, "ds_tensor", getattr(tensor, "_local_tensor", tensor))


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    if not flat.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    size, per_word = flat.element_size(), 8 // flat.element_size()
    words = flat.numel() // per_word * per_word if flat.storage_offset() * size % 8 == 0 else 0
    rest = flat[words:].view(BITS[size]).sum(dtype=torch.int64)
    return flat[:words].view(torch.int64).sum() + rest if words else rest


Tensors = list[tuple[str, torch.Tensor]]  # by name


class WeightSample:
    """Copies of some of the trainer's tensors, to check a sync: one tensor in `every`, and others at the next sync."""

    def __init__(self, every: int, syncs: int = 0):
        """every: one tensor in so many is checked after a sync; at least 1, else EngineError is raised. syncs: the
        number of syncs so far."""
        if every < 1:
            raise EngineError(f"weight_check_every={every}: set it to 1 or more syncs")
        self.every = every
        self.syncs = syncs
        self.restart()

    def restart(self) -> None:
        """Begin the present sync anew: forget the tensors that it has loaded so far."""
        self._tensors: Tensors = []
        self._num_loaded = 0  # number of tensors that this sync has loaded so far

    def watch(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass on the tensors that a sync loads, as they are, and keep the sample.

        TRL takes merged LoRA weights apart again and frees gathered ones, so the sample is a copy. It is kept on the
        host, to spare the GPU's memory.
        """
        for name, tensor in named_tensors:
            if (self._num_loaded + self.syncs) % self.every == 0:
                self._tensors.append((name, tensor.detach().to("cpu", copy=True)))
            self._num_loaded += 1
            yield name, tensor

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Choose the sample, by name, for a sync that loads these tensors into another process. The next sync gets
        another sample.
        """
        sample = [name for index, name in enumerate(names) if (index + self.syncs) % self.every == 0]
        self.syncs += 1
        return sample

    def take(self) -> Tensors:
        """Return the sample, after a sync. The next sync gets another sample. Raises WeightSyncError if the sync has
        loaded nothing."""
        tensors, num_loaded = self._tensors, self._num_loaded
        self.syncs += 1
        self.restart()
        if not num_loaded:
            raise WeightSyncError("the new weights did not reach the engine: none was loaded")
        return tensors


def problem_of(lost: Iterable[str], cached_blocks: int = 0) -> str:
    """Returns, in words, the problem that an engine has after a sync; empty if there is none.

    lost: what each of its ranks says of the sample; empty if all arrived. cached_blocks: those of its prefix cache.
    """
    for of_rank in filter(None, lost):
        return f"the new weights did not reach the engine: {of_rank}"
    if cached_blocks:
        return (
            f"the engine's prefix cache holds {cached_blocks} blocks of older weights: end all requests before the "
            "next training step, or set enable_prefix_caching to False"
        )
    return ""


def check_together(check: Callable[[], str], step: int) -> None:
    """Run `check` on every rank. If it returns a problem or raises on any rank, raise WeightSyncError on all ranks.

    All ranks must call it. If there is only one rank, an error that `check` raises is passed on unchanged.
    """
    try:
        problem = check()
    except WeightSyncError as error:
        problem = str(error)
    except Exception as error:
        if ranks.count() == 1:
            raise
        problem = f"{type(error).__name__}: {reason_of(error)}"
    for rank, theirs in enumerate(ranks.gather(problem)):
        if theirs:
            where = f" (rank {rank})" if ranks.count() > 1 else ""
            raise WeightSyncError(f"step {step}: {theirs}{where}")


def whole(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one at a time, with their shards put together. All ranks must iterate to the end."""
    for name, tensor in named_tensors:
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# ---- in the engine ----


def lost_weights(model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], turn: int = 0) -> str:
    """Returns which of `tensors` did not arrive in the engine's `model`, in words; empty if all of them did.

    tensors: the trainer's tensors in the trainer's type, by the names under which they were loaded. turn: counts the
    checks; each turn reads other columns of the packed copies with which the CPU's linear layers compute.
    """
    touched: set[int] = set()
    for name, tensor in tensors:
        with _Writes(model) as writes:
            model.load_weights([(name, tensor)])  # type: ignore[operator]
        if not writes.before:
            return f"{name} has no place in it"
        if differing := sum(_differing(place, held) for place, held in writes.before.values()):
            return f"{name} differs in {differing:,} of {tensor.numel():,} values"
        touched |= {place.untyped_storage().data_ptr() for place, _ in writes.before.values()}
    for name, layer in model.named_modules():
        if _is_packed(layer) and layer.weight.untyped_storage().data_ptr() in touched and not _repacked(layer, turn):
            return f"{name} computes with an older copy of its weights"
        places = (getattr(layer, weights, None) for weights in ("w13_weight", "w2_weight"))
        of_experts = {place.untyped_storage().data_ptr() for place in places if isinstance(place, torch.Tensor)}
        if hasattr(layer, "das_experts") and of_experts & touched and layer.das_experts.stale():
            return f"{name} computes with an older copy of its experts"
    return ""


class _Writes(TorchDispatchMode):
    """While active, it saves the value of each place in the engine's parameters before the first write to that
    place."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        held = chain(model.parameters(), model.buffers())
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in held if not tensor.is_meta}
        self.before: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}  # by place: (the place, what it held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            for place in self._of_engine((*args, *(kwargs or {}).values())):
                key = (place.data_ptr(), tuple(place.shape), place.stride())
                if place.numel() and key not in self.before:
                    self.before[key] = place, place.clone()
        return func(*args, **(kwargs or {}))

    def _of_engine(self, arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
        for argument in arguments:
            on_device = isinstance(argument, torch.Tensor) and not argument.is_meta
            if on_device and argument.untyped_storage().data_ptr() in self._storages:
                yield argument


def _differing(now: torch.Tensor, before: torch.Tensor) -> int:
    """Returns how many numbers of the two tensors differ in their bits. A NaN equals a NaN of the same bits."""
    bits = BITS[now.element_size()]
    bits_now, bits_before = now.detach().contiguous().view(bits), before.detach().contiguous().view(bits)
    return 0 if torch.equal(bits_now, bits_before) else int((bits_now != bits_before).sum())


def _is_packed(layer: torch.nn.Module) -> bool:
    """Returns whether the layer computes with a copy of its weights that was packed for the CPU."""
    return hasattr(layer, "cpu_linear") and isinstance(layer.weight, torch.Tensor) and layer.weight.ndim == 2


def _repacked(layer: Any, turn: int) -> bool:
    """Returns whether the packed copy equals the layer's weights, in those columns that this `turn` reads.

    The layer's output for a unit vector is exactly a column of the copy, because all other products are 0.
    """
    weight = layer.weight.detach()  # [outputs, inputs]
    inputs = weight.shape[1]
    stride = -(-inputs // PACKED_COLUMNS)
    index = torch.arange(turn % stride, inputs, stride)
    units = torch.zeros(len(index), inputs, dtype=weight.dtype)
    units[torch.arange(len(index)), index] = 1
    smallest = torch.finfo(weight.dtype).tiny  # some matrix instructions treat smaller numbers as 0
    return torch.allclose(layer.cpu_linear(units, weight, None), weight[:, index].t(), rtol=0, atol=smallest)


def cached_blocks(llm: Any) -> int:
    """Return the number of reusable blocks in the prefix cache of an engine in this process.

    llm: the engine, a vllm.LLM.
    """
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return sum(block.block_hash is not None for block in pool.blocks)


def use_weights(llm: Any, sample: Tensors, turn: int) -> str:
    """Let an engine in this process compute with the weights that were loaded into it. Returns, in words, its problem
    with them; empty if there is none. sample: tensors that were loaded. turn: see `lost_weights`."""
    llm.collective_rpc("das_use_new_weights")
    lost = llm.collective_rpc("das_lost_weights", args=(sample, turn))  # of each rank of the engine
    return problem_of(lost, cached_blocks(llm))
