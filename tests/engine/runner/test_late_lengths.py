"""Passes that begin before their drafts are known: the kernels that wait for drafts and choose among them, in Triton's
interpreter and compiled for Hopper; and what an engine must not have."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Engines, random_policy, roll
from scripts import run_script
from vllm import SamplingParams
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager

from das.budget import LiveRequest
from das.budget.marginal import best_tokens
from das.budget.policies import Fixed
from das.drafter import Drafts
from das.engine.patches.front_end import let_force
from das.engine.runner import late_lengths
from das.engine.runner.late_lengths import CALLS, why_not
from das.verify.admission import FORCED_KEY
from experiments.simulate.rollouts import read_rollouts
from tests.verify.test_keyed_triton import run_python

CHOSEN = """
import numpy as np
import torch
from das.draft_round import admitted
from das.drafter import Drafts
from das.engine.runner.late_kernels import admit

rng = np.random.default_rng(0)
for case in range(CASES):
    requests, longest = int(rng.integers(1, 25)), int(rng.integers(1, 9))
    counts, most = rng.integers(0, longest + 1, (2, requests))
    probs = rng.uniform(0, 1, (requests, longest))
    some = probs * (rng.random(probs.shape) < 0.7)
    probs = (np.ones_like(probs), 1e-3 * probs, some, probs.round(1), probs)[case % 5]
    counts, most = counts * (case % 7 > 0), most if case % 4 else np.full(requests, longest)
    could = int(most.sum())
    total = int(rng.choice([0, could, could // 2, min(could, 1), int(np.minimum(counts, most).sum())]))
    places = rng.permutation(requests + 3)[:requests]
    there_probs, there_counts = np.full((requests + 3, longest), np.nan), np.full(requests + 3, 9)
    there_probs[places], there_counts[places] = probs, counts
    starts = torch.full((requests + 2,), -7, dtype=torch.int32)
    inputs = torch.from_numpy(np.stack((places, most)).astype(np.int32))
    arrays = torch.from_numpy(there_probs), torch.from_numpy(there_counts), inputs
    admit[(1,)](*arrays, requests, longest, total, starts, ROWS=32, LONGEST=8)
    assert int(starts[0]) == 0 and int(starts[requests]) == requests + total and int(starts[-1]) == -7
    own = starts[:-1].diff() - 1
    assert own.tolist() == admitted(Drafts(np.zeros(probs.shape, np.int32), probs, counts), most, total).tolist()
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from das.engine.runner.late_kernels import admit, wait_for_drafts

pointers = dict.fromkeys(("numbers", "drafts", "indices", "out", "counts"), "*i64")
pointers |= {"probs": "*fp64", "inputs": "*i32", "starts": "*i32"}
for kernel, sizes in ((admit, {"ROWS": 256, "LONGEST": 8}), (wait_for_drafts, {"PATIENCE": 1000, "BLOCK": 2048})):
    types = {name: pointers.get(name, "constexpr" if name in sizes else "i32") for name in kernel.arg_names}
    compiled = compile(ASTSource(kernel, types, constexprs=sizes), target=GPUTarget("cuda", 90, 32))
    print(compiled.asm["ptx"])
"""

WAITED = """
import threading, time
from types import SimpleNamespace
from das.engine.runner import late_lengths

class Device(late_lengths.LateLengths):  # computes on the CPU
    _on_cpu = property(lambda self: False, lambda self, there: None)

pinned, late_lengths.torch = torch.zeros, SimpleNamespace(**vars(torch))
late_lengths.torch.zeros = lambda *args, pin_memory=False, **kwargs: pinned(*args, **kwargs)
warned = []
late_lengths._logger.warning = warned.append
drafts, starts = torch.full((6, 3), -1), torch.zeros(7, dtype=torch.int32)
vllm = SimpleNamespace(
    req_states=SimpleNamespace(draft_tokens=drafts), input_buffers=SimpleNamespace(query_start_loc=starts),
    adaptive_verification=None,
)
late = Device(vllm, None)


def run(number):  # a pass of two requests, 4 and 1 in vLLM's arrays, in another order than the pass before
    with late.deciding(3, number, torch.tensor([4, 1]), {"a": 0, "b": 1}):
        taken = vllm.adaptive_verification
        assert taken.get_num_tokens({"b": 4, "a": 4}, {}) == 5
        taken.compact_batch(np.array([3, 3], np.int32), np.array([4, 4], np.int32), np.array([0, 4, 8]))
        logits, rows, total = taken.reallocate_drafts(["b", "a"], torch.tensor([1, 4]))
    assert vllm.adaptive_verification is None and total == 3
    return logits.tolist()


made = Drafts(np.array([[11, 12, 13], [21, 22, 23]], np.int32), np.array([[0.9, 0.8, 0.7], [0.2, 0.1, 0.1]]),
              np.array([3, 1]))  # fmt: skip

def write_later(number):
    time.sleep(0.3)  # the device is at its first looks by then
    assert (drafts == -1).all()
    late.memory.write(number, [0, 1], made)

for number in range(1, 3):  # each wait takes its own draft, not the one before
    drafts.fill_(-1)
    made.tokens[:] += 100
    writer = threading.Thread(target=write_later, args=(number,))
    writer.start()
    assert run(number) == [0, 1, 5], "all three tokens of the likelier draft"
    writer.join()
    assert drafts[[4, 1]].tolist() == [made.tokens[0].tolist(), [int(made.tokens[1, 0]), 0, 0]]
    assert (drafts[[0, 2, 3, 5]] == -1).all()
assert not warned

late_lengths.PATIENCE = 5
assert run(9)[-1] == 5  # ends, though nobody writes, and has its rows
assert len(warned) == 1
late.memory.write(9, [0, 1], made)
late.memory.write(9)  # the drafter's thread was first
assert late.memory.counts[:2].tolist() == [3, 1]
late.memory.write(10)
assert not late.memory.counts.any() and run(10)[-1] == 5
"""


@pytest.mark.slow
@pytest.mark.parametrize("cases", [20, pytest.param(2000, marks=pytest.mark.nightly)])
def test_lengths_are_those_of_c_and_the_device_waits_for_its_drafts(tmp_path: Path, cases: int) -> None:
    """There are as many tokens as the pass has rows for. It waits for the draft that is written next, and gives up at
    last."""
    ran = run_python(tmp_path, CHOSEN.replace("CASES", str(cases)) + WAITED, TRITON_INTERPRET="1")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_kernels_compile_for_sm_90_and_read_the_hosts_memory_anew_each_time() -> None:
    choice, wait = run_script("-c", COMPILED).split("wait_for_drafts", 1)
    assert "ld.volatile" in choice
    loop = wait[wait.index("ld.volatile") :]
    assert loop.count("ld.volatile") >= 2, "the first look, and those of the loop"


class Attention:
    """A backend that goes by the device's lengths, or by those that the host knows."""

    def __init__(self, by_device: bool):
        self.supports_device_cpu_query_lens_mismatch = lambda: by_device
        self.__name__ = "ATTENTION"


def runner(by_device: bool = True, **changes: Any) -> Any:
    """vLLM's runner as far as das asks it."""
    config = SimpleNamespace(
        lora_config=changes.pop("lora", None),
        model_config=SimpleNamespace(**changes.pop("model", {})),
        parallel_config=SimpleNamespace(data_parallel_size=1, **changes.pop("parallel", {})),
    )
    groups = [[SimpleNamespace(backend=Attention(by_device), layer_names=["0"])]]
    return SimpleNamespace(vllm_config=config, attn_groups=groups, **changes)


def test_engines_whose_lengths_the_host_must_know_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_lengths, "get_world_group", lambda: SimpleNamespace(world_size=1))
    assert why_not(runner()) == ""
    cases: dict[str, dict[str, Any]] = {
        "adapters": {"lora": object()},
        "DBO": {"parallel": {"use_ubatching": True}},
        "batch-sharded": {"parallel": {"enable_batch_sharded_sampling": True}},
        "sampling masks": {"model": {"return_sampling_mask": True}},
        "routed experts": {"model": {"enable_return_routed_experts": True}},
        "prompts that skip": {"fast_prefill": object()},
        "ATTENTION": {"by_device": False},
    }
    for line, changes in cases.items():
        assert line in why_not(runner(**changes))
    with monkeypatch.context() as other:
        other.setattr(AdaptiveVerificationManager, "compact_batch", lambda self, budget: None)
        assert why_not(runner()) == "this version of vLLM (compact_batch)"
        other.delattr(AdaptiveVerificationManager, "get_num_tokens")
        assert why_not(runner()) == "this version of vLLM (get_num_tokens)"
    assert CALLS.keys() <= vars(late_lengths.LateLengths).keys()
    monkeypatch.setattr(late_lengths, "get_world_group", lambda: SimpleNamespace(world_size=2))
    assert why_not(runner()) == "several ranks"


class Priced(Fixed):
    """A budget for passes in which a drafted token costs three tenths of what a request does."""

    reads_probabilities = True

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        seconds = 1.0 + 0.3 * np.arange(int(drafts.counts.sum()) + 1) / len(live)
        return best_tokens(drafts, seconds)[1].tolist()


TRACES = Path(__file__).resolve().parents[4] / "shared/data/traces"
SEATS, REQUESTS, SIBLINGS, STEPS, LONGEST, FIRST = 64, 96, 8, 3, 300, 6


def recorded_steps(name: str) -> tuple[list[tuple[list[str], list[list[int]]]], int]:
    """Problems and responses of each step, whose tokens are cut and numbered anew, and the size of the vocabulary."""
    steps = [work.part(range(REQUESTS)) for work in read_rollouts(TRACES / f"{name}.jsonl.gz", SIBLINGS)[:STEPS]]
    texts = [work.response(i)[:LONGEST] for work in steps for i in range(REQUESTS)]
    known, ids = np.unique(np.concatenate(texts), return_inverse=True)
    new = iter([own.tolist() for own in np.split(ids + FIRST, np.cumsum([*map(len, texts)])[:-1])])
    return [([*work.problems], [next(new) for _ in range(REQUESTS)]) for work in steps], FIRST + len(known)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rg_llama3b_rl", "areal_nemotron_base"])
def test_late_lengths_verify_and_accept_what_known_ones_do(name: str, engines: Engines, tmp_path: Path) -> None:
    """Within 3 %, on recorded text. A synchronous engine knows all drafts."""
    if not TRACES.exists():
        pytest.skip("the recordings are not there: ../shared/data/traces")
    steps, vocabulary = recorded_steps(name)
    policy, counts = random_policy(tmp_path / "policy", vocab_size=vocabulary), []
    for asynchronous in (False, True):
        llm = engines.build(
            policy, method="das", max_num_seqs=SEATS, max_model_len=512, asynchronous=asynchronous,
            budget={"name": f"{__name__}:Priced", "tokens": 8},
        )  # fmt: skip
        let_force(llm)
        found = np.zeros(2)
        for tick, (problems, responses) in enumerate(steps, 1):
            llm.collective_rpc("das_force", args=({str(i): own for i, own in enumerate(responses)}, None))
            params = [
                SamplingParams(max_tokens=len(own), ignore_eos=True, detokenize=False, extra_args={FORCED_KEY: str(i)})
                for i, own in enumerate(responses)
            ]
            prompts = [[FIRST + int(problem, 16) % 97, 7, 8] for problem in problems]
            tokens, _, report = roll(llm, prompts, params, problems, tick)
            assert tokens == responses
            found += report["drafted"], report["accepted"]
        late = report["launched_ahead"] / report["decode_steps"]
        assert late > 0.9 if asynchronous else late == 0
        counts.append(found)
    exact, by_late = counts
    assert by_late == pytest.approx(exact, rel=0.03)
