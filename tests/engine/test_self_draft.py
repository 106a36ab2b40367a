"""Self-drafts in a real engine: when they are quantized anew, and what a broken one cannot do. That they change no
token, and how many are accepted: tests/identity/.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import das_runner_of
from conftest import PROMPTS, Engines, roll
from vllm import SamplingParams

from das.engine.settings import das_options
from das.general.errors import NotInstalled
from das.models.draft_passes import blocks_needed, with_scratch_blocks
from das.models.self_draft import BROKEN, SLOW, SelfDraft, require_self_draft

REQUESTS = 8
W8: dict[str, Any] = {"method": "self_draft", "self_draft": "w8a8", "budget": {"name": "fixed", "tokens": 7}}


def rollout(llm: Any, tick: int = 1, **sampling: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Tokens and the report of 8 responses of 80 tokens."""
    params = [
        SamplingParams(**{"temperature": 1.0, "seed": i, "max_tokens": 80, "ignore_eos": True, **sampling})
        for i in range(REQUESTS)
    ]
    tokens, _, report = roll(
        llm, [PROMPTS[i % 4] for i in range(REQUESTS)], params, [str(i % 4) for i in range(REQUESTS)], tick
    )
    return tokens, report


def test_a_broken_self_draft_changes_nothing_and_is_switched_off(engines: Engines, tiny_policy: str) -> None:
    llm = engines.fresh(tiny_policy, **W8)
    layers = das_runner_of(llm).flights.drafter.drafting_model
    expected, _ = rollout(llm, 1)  # builds and uses the quantized layers
    healthy = list(layers._layers._drafting)

    def poisoned(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return healthy[0].linear(x, bias).fill_(float("nan"))

    layers._layers._drafting[0] = replace(healthy[0], linear=poisoned)
    tokens, report = rollout(llm, 2)
    assert tokens == expected
    assert BROKEN in report["alarms"]
    assert report["drafted"] == 0
    caches = das_runner_of(llm).vllm.kv_caches
    scratch = list(das_runner_of(llm).draft_blocks)
    assert all(bool(torch.isfinite(cache[scratch]).all()) for cache in caches)
    layers._layers._drafting[0] = healthy[0]
    assert rollout(llm, 3)[1]["drafted"] == 0  # off until new weights come
    das_runner_of(llm).quantized.newest += 1
    tokens, report = rollout(llm, 4)
    assert tokens == expected
    assert report["drafted"] > 0


def test_weights_are_quantized_once_after_each_sync(engines: Engines, tiny_policy: str) -> None:
    llm = engines.fresh(tiny_policy, **W8)
    runner = das_runner_of(llm)
    quantized = runner.quantized
    assert quantized is not None
    x = torch.randn(3, 96)

    def drafted_with() -> torch.Tensor:
        """What the quantized layer gives for x."""
        layer = runner.vllm.get_model().model.layers[0].mlp.down_proj
        with quantized.used():
            out: torch.Tensor = layer.quant_method.apply(layer, x)
        return out

    weight = runner.vllm.get_model().model.layers[0].mlp.down_proj.weight.data.clone()

    def sync(factor: float) -> None:
        new = ("model.layers.0.mlp.down_proj.weight", weight * factor)
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": [new], "is_checkpoint_format": True})

    sync(1.0)
    assert rollout(llm, 1)[1]["requantize_s"] > 0
    before = drafted_with()
    assert rollout(llm, 2)[1]["requantize_s"] == 0
    sync(0.5)
    assert rollout(llm, 3)[1]["requantize_s"] > 0
    torch.testing.assert_close(drafted_with(), before / 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"drafters": {}}, 'additional_config."das". must be a dictionary of '),
        ({"self_draft": 3}, "self_draft=3: choose w8a8 or w4"),
        ({"self_draft": "w8a8"}, "budget=marginal cannot cut self-drafts, .*: choose fixed, ladder or roofline_toggle"),
        ({"self_draft": "w4", "budget": {"name": "roofline_toggle", "over": {"name": "marginal"}}}, "cannot cut"),
    ],
)
def test_raw_settings_of_another_form_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        das_options(SimpleNamespace(additional_config={"das": settings}))


def test_a_cache_of_another_kind_is_refused() -> None:
    config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=None)] * 2, kv_cache_tensors=[None])
    with pytest.raises(NotInstalled, match=r"^self-drafts need a model that .*: choose another method, such as das$"):
        with_scratch_blocks(config, 8)


def test_scratch_blocks_hold_any_draft() -> None:
    for tokens in range(1, 40):
        assert blocks_needed(tokens, 8) == max((start + tokens - 1) // 8 + 1 for start in range(8))


def test_floats_and_formats_that_no_gpu_kernel_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setattr("vllm.platforms.current_platform", gpu)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        kv_transfer_config=None,
        lora_config=None,
        model_config=SimpleNamespace(uses_mrope=False, is_moe=False, quantization=None, dtype=torch.bfloat16),
    )
    require_self_draft(config, "w4")
    with pytest.raises(NotInstalled, match=r"^self_draft=w8a8: on a CPU only; choose w4$"):
        require_self_draft(config, "w8a8")
    config.model_config.dtype = torch.float32
    with pytest.raises(NotInstalled, match=r"take no torch.float32; set dtype=bfloat16"):
        require_self_draft(config, "w4")


@pytest.mark.parametrize(
    ("weights", "products", "alarms"), [("w8a8", False, [SLOW]), ("w8a8", True, []), ("w4", False, [])]
)
def test_8_bits_warn_where_the_processor_has_no_products_of_8_bits(
    weights: str, products: bool, alarms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("das.models.self_draft.has_8_bit_products", lambda: products)
    assert SelfDraft(weights, lambda _: pytest.fail("no pass yet")).alarms() == alarms
