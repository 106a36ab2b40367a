"""A stand-in of each architecture: with every method that is tried, it answers as without drafts.

One engine meets a prefix cache, prompts in chunks, preemption and new weights, or an adapter. What is refused instead:
test_build_checks.py.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_policies
import pytest
import torch
from cases import core_of
from conftest import Engines
from logprobs import TOLERANCE, logprob_difference
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from das.engine.checked_policies import CHECKED, RUNNING

# Not ngram: it compiles with numba, and then vLLM cannot build another engine in the process (a bug of its scan for
# kernels).
METHODS: dict[str, dict[str, Any]] = {
    "self_draft": {"budget": {"name": "fixed", "tokens": 7}},
    "suffix": {},
    "draft_model": {"speculative": {"num_speculative_tokens": 3}},
}
ROOM, CROWDED, ADAPTER = "room for all", "crowded", "adapter"
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    ROOM: {},
    # Few blocks of 128 tokens, some of which requests share, and few tokens a pass.
    CROWDED: {"max_num_batched_tokens": 48, "extra": {"num_gpu_blocks_override": 9}},
    ADAPTER: {"extra": {"num_gpu_blocks_override": 64, "enable_lora": True, "max_lora_rank": 8}},
}
TOKENS = 40
Tried = Callable[[str, str, str], tuple[list[Any], list[Any]]]
IMAGES = 2


def prompts(folder: str) -> list[Any]:
    """Prompts that share beginnings, up to 140 tokens long; for a policy that sees, also a text with two images."""
    generator = torch.Generator().manual_seed(0)
    longest = torch.randint(8, 250, (140,), generator=generator).tolist()
    texts: list[Any] = [{"prompt_token_ids": longest[:length]} for length in (30, 100, 110, 140)]
    if not hasattr(AutoConfig.from_pretrained(folder), "vision_config"):
        return texts
    from PIL import Image

    text = f"<|user|>{made_policies.IMAGE}what is 3 + 4?<|end|><|assistant|>"
    colours = ("red", "blue")[:IMAGES]
    return texts + [
        {"prompt": text, "multi_modal_data": {"image": Image.new("RGB", (112, 112), colour)}} for colour in colours
    ]


def answers(llm: Any, asked: list[Any], tick: int, adapter: str = "") -> tuple[list[Any], Any]:
    """Three responses to each prompt: tokens and log-probs; and the rollout's report, with the number of prompt tokens
    that were `cached`. Every third request has the same seed at every tick. adapter: folder of the adapter that every
    second request takes."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    params, adapters = [], []
    for index in range(3 * len(asked)):
        params.append(
            SamplingParams(
                seed=index if index % 3 == 0 else 100 * tick + index,
                temperature=(1.0, 0.6, 0.0)[index % 4 % 3],
                top_p=(1.0, 0.9)[index % 2],
                max_tokens=TOKENS - 5 * (index % 3),
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
                extra_args={"das_problem": str(index % len(asked))},
            )
        )
        adapters.append(LoRARequest("adapter", 1, adapter) if adapter and index % 2 else None)
    llm.collective_rpc("das_begin_rollout", args=(len(params),))
    outputs = llm.generate(asked * 3, params, use_tqdm=False, lora_request=adapters if adapter else None)
    (report,) = llm.collective_rpc("das_end_rollout", args=(tick,))
    responses = [output.outputs[0] for output in outputs]
    found = [
        (list(one.token_ids), [place[token].logprob for place, token in zip(one.logprobs, one.token_ids, strict=True)])
        for one in responses
    ]
    return found, {**report, "cached": sum(output.num_cached_tokens or 0 for output in outputs)}


def trainer_of(folder: str) -> Any:
    """The policy as a trainer holds it."""
    sees = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32)


def sync(llm: Any, folder: str) -> None:
    """Load other weights as TRL does, one by one, and check that the engine computes with them."""
    model = trainer_of(folder)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.mul_(1 + 0.1 * torch.randn_like(parameter))
    engine, tensors = core_of(llm).model_executor.driver_worker.worker.model_runner.get_model(), []
    for name, parameter in model.named_parameters():
        engine.load_weights([(name, parameter.data)])
        tensors.append((name, parameter.data))
    llm.collective_rpc("das_use_new_weights")
    llm.reset_prefix_cache()
    assert llm.collective_rpc("das_lost_weights", args=(tensors, 0)) == [""]
    assert logprob_difference(model, llm.generate) < TOLERANCE


def write_adapter(folder: str, into: Path) -> str:
    """Write a LoRA adapter with random weights for the policy in `folder`. Returns its folder."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    config = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    get_peft_model(trainer_of(folder), config).save_pretrained(into)
    return str(into)


def rolled_out(
    engines: Engines, folder: str, method: str, circumstance: str, adapter: str
) -> tuple[list[Any], list[Any]]:
    """What an engine answers twice, and once more after a sync; and the reports. With an adapter, there is no sync, nor
    where vLLM runs transformers' own class: it changes that class, so that no trainer in the process can use it."""
    settings = {"method": method} | METHODS.get(method, {}) | CIRCUMSTANCES[circumstance]
    if method == "self_draft" and circumstance == CROWDED:  # nearly all of their drafts are right: few requests at once
        settings["extra"] = {"num_gpu_blocks_override": 5}
    if method == "draft_model":
        settings["speculative"] = {**settings["speculative"], "model": folder}
    llm = engines.build(folder, **settings)
    asked = prompts(folder)
    found = [answers(llm, asked, tick, adapter) for tick in (1, 2)]
    if not adapter and not llm.llm_engine.model_config.using_transformers_backend():
        sync(llm, folder)
        found.append(answers(llm, asked, 3))
    return [each for each, _ in found], [report for _, report in found]


WINDOWS = ("Gemma3ForCausalLM", "GptOssForCausalLM", "MistralForCausalLM")
OF_EACH_KIND = ("Qwen3MoeForCausalLM", "Gemma3ForCausalLM")  # experts, windows
# Name of a stand-in, method, circumstance. Full attention without either: tests/identity/. At night there are all
# architectures, and the papers' meet every method.
CASES = [
    ("LlamaForCausalLM", "das", ADAPTER),
    *((name, "das", CROWDED) for name in OF_EACH_KIND),
    *(
        pytest.param(*case, marks=pytest.mark.nightly)
        for case in (
            *((name, "das", CROWDED) for name in sorted(CHECKED - {*OF_EACH_KIND})),
            *itertools.product(("Qwen2ForCausalLM", "Qwen3ForCausalLM"), METHODS, [CROWDED]),
        )
    ),
]


@pytest.fixture(scope="module")
def tried(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """What an engine of a policy answers by a method in a circumstance, and the reports."""

    @functools.cache
    def written(name: str) -> str:
        return made_policies.write(name, tmp_path_factory.mktemp(name))

    @functools.cache
    def adapter(name: str) -> str:
        return write_adapter(written(name), tmp_path_factory.mktemp("adapter"))

    @functools.cache
    def tried(name: str, method: str, circumstance: str) -> tuple[list[Any], list[Any]]:
        own = adapter(name) if circumstance == ADAPTER else ""
        return rolled_out(engines, written(name), method, circumstance, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNNING, "1")  # an unknown architecture is compared here, so das need not
        yield tried


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry whenever a request is preempted."""
    from vllm.v1.core.sched.scheduler import Scheduler

    seen: list[int] = []
    preempt = Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler, "_preempt_request", lambda *args, **kwargs: seen.append(1) or preempt(*args, **kwargs)
    )
    return seen


def test_each_checked_architecture_has_a_stand_in() -> None:
    assert set(made_policies.CONFIGS) >= CHECKED


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method", "circumstance"), CASES)
def test_answers_are_equal(name: str, method: str, circumstance: str, tried: Tried, preempted: list[int]) -> None:
    if method == "suffix":
        pytest.importorskip("arctic_inference", reason="suffix needs arctic-inference (make peers)")
    if made_policies.sees(name):
        pytest.importorskip("torchvision", reason="policies that see need torchvision, in the build of the torch here")
    expected, _ = tried(name, "none", ADAPTER if circumstance == ADAPTER else ROOM)
    preempted.clear()
    found, reports = tried(name, method, circumstance)
    assert found == expected
    assert bool(preempted) == (circumstance == CROWDED)
    # Windows take twice the blocks, and of so few none is left to be found again.
    assert any(report["cached"] for report in reports) or circumstance == ADAPTER or name in WINDOWS
    assert sum(report["drafted"] for report in reports) > 0
    emitted = sum(len(tokens) for answers in found for tokens, _ in answers)
    assert emitted > sum(report["passes"] for report in reports)
