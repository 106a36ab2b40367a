"""Computed times of GPUs: against published and measured passes, term by term, and that das loses nothing by them."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from das.budget.latency import ON_GPU
from experiments.run.errors import CONFIGS
from experiments.simulate import against_h200
from experiments.simulate.engine import roll_out
from experiments.simulate.gpu_times import LAUNCH, MODELS, GpuTimes, gpu_times
from experiments.simulate.text_engine import Arm
from experiments.simulate.times import PassWork
from experiments.simulate.workload import Workload, workload

PUBLISHED = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())["er_constants"][
    "data"
]


def device(times: GpuTimes, live: float, rows: float, context: float) -> float:
    return float(times.device(*(np.array(float(value)) for value in (live, rows, context))))


@pytest.mark.parametrize(("name", "key"), [("7B", "Qwen2.5-7B"), ("14B", "Qwen2.5-14B")])
def test_shapes_give_the_published_constants(name: str, key: str) -> None:
    model, paper = MODELS[name], PUBLISHED[key]
    assert 2 * model.parameters == pytest.approx(paper["W_T"], rel=2e-3)
    assert model.flop == pytest.approx(paper["C_dense"], rel=2e-3)
    assert model.attention_flop == paper["C_attn"]
    assert model.kv_bytes == paper["kappa_theoretical"]


def test_sizes_are_the_models_names() -> None:
    for name, model in MODELS.items():
        assert model.parameters / 1e9 == pytest.approx(float(name[:-1]), rel=0.1)
    moe = MODELS["235B"]
    assert moe.flop / 2e9 == pytest.approx(22, rel=0.05)
    assert float(moe.read(np.array(1e9))) == pytest.approx(moe.parameters, rel=0.01)
    assert float(moe.read(np.array(1.0))) == pytest.approx(moe.flop / 2, rel=0.01), "one row chooses 8 experts"


def test_a_pass_of_one_request_takes_what_the_published_sweep_of_an_a100_took() -> None:
    for model, ms in (("7B", 9.53), ("14B", 18.55)):
        times = replace(gpu_times("A100", model), log_probs=False)
        assert 1e3 * device(times, 1, 1, 256) == pytest.approx(ms, rel=0.02)


def test_the_h200s_passes_are_met_within_a_tenth_and_the_ratios_of_its_rollouts_within_a_twentieth() -> None:
    for what, measured, computed in against_h200.passes():
        assert computed == pytest.approx(measured, rel=0.1), what
    for live, measured in against_h200.DAS.items():
        stock_ms, das = against_h200.rolled(live)
        assert stock_ms == pytest.approx(against_h200.STOCK[live], rel=0.05)
        assert das.ms == pytest.approx(measured.ms, rel=0.1)
        assert das.ratio == pytest.approx(measured.ratio, rel=0.05)
    for live, ms in against_h200.AT_REST.items():
        assert against_h200.at_rest(live) == pytest.approx(ms, rel=0.1)


def test_keys_and_values_come_on_top_and_are_read_once_for_all_rows_of_a_request() -> None:
    fa3 = gpu_times("H200", "8B")
    reading = device(fa3, 64, 64, 64 * 8000) - device(fa3, 64, 64, 64 * 4000)
    assert reading == pytest.approx(64 * 4000 * fa3.model.kv_bytes / (fa3.gpu.bandwidth * 0.73))
    assert device(fa3, 64, 320, 64 * 8000) - device(fa3, 64, 320, 64 * 4000) == pytest.approx(reading)


def test_the_wait_for_drafts_is_in_series_with_device_and_host() -> None:
    times = gpu_times("H200", "8B")
    for live, context in ((16, 16 * 350), (256, 256 * 350)):  # the device takes longer; the host does
        work = PassWork(live, 4 * live, context, 2 * live, asked=live)
        on_device = float(times.device(*(np.array(float(x)) for x in (live, 5 * live, context)), remembers=True))
        host = float(times.on_host(np.array(float(live)), np.array(2.0 * live)))
        assert times.seconds(work) == pytest.approx(times.drafting(live) + max(on_device, host))
        assert times.seconds(replace(work, joined=1)) > times.seconds(work) + LAUNCH
    resting = replace(work, drafted=0, asked=0, emitted=256)
    stock = replace(times, das=False).seconds(resting)
    assert times.seconds(resting) == pytest.approx(stock + 256 * times.reading)
    assert times.seconds(replace(resting, asked=256)) == pytest.approx(stock + times.drafting(256))


def test_the_budgets_first_guess_on_a_gpu_is_the_models() -> None:
    times = gpu_times("H200", "8B")
    row = (device(times, 64, 576, 0) - device(times, 64, 320, 0)) / 256
    assert device(times, 1, 1, 0) / row == pytest.approx(ON_GPU, rel=0.1)


def copied(live: int) -> list[Workload]:
    return against_h200.works(live, 3)


def unlike(live: int) -> list[Workload]:
    """Return as long responses in which nothing comes twice, so that all drafts are wrong."""
    random = np.random.default_rng(live)
    return [workload(w.problems, random.integers(0, 5000, (live, 192)), w.prompt) for w in copied(live)]


@pytest.mark.parametrize("live", [16, 256])
@pytest.mark.parametrize("works", [copied, unlike])
def test_no_rollout_takes_longer_than_that_of_stock(live: int, works: Callable[[int], list[Workload]]) -> None:
    """At an H200's prices no rollout, the first one included, takes 2 % longer, whether drafts are right or wrong.

    All responses are equally long, which is the worst case: the slowest request ends the rollout.
    """
    epochs, times, arm = works(live), gpu_times("H200", "8B"), Arm({"name": "marginal", "ratio": ON_GPU}, ahead=True)
    stock = roll_out(Arm().engine(replace(times, das=False), live, 200), epochs)
    das = roll_out(arm.engine(times, live, 200), epochs)
    assert max(drafted.rollout_s / plain.rollout_s for drafted, plain in zip(das, stock, strict=True)) < 1.02
    if works is copied and live <= 32:
        assert das[-1].rollout_s < 0.95 * stock[-1].rollout_s
