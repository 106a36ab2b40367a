"""Derived latencies, compared with the published A100 calibrations and with each other."""

import json

import numpy as np
import pytest

from experiments.run.errors import CONFIGS
from experiments.simulate.hardware import GPUS, MODELS, derived

PUBLISHED = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())["er_constants"][
    "data"
]


@pytest.mark.parametrize(("name", "key"), [("7B", "Qwen2.5-7B"), ("14B", "Qwen2.5-14B")])
def test_shapes_give_the_published_constants(name: str, key: str) -> None:
    model, paper = MODELS[name], PUBLISHED[key]
    assert float(model.weight_bytes(np.float64(1))) == pytest.approx(paper["W_T"], rel=2e-3)
    assert model.flop == pytest.approx(paper["C_dense"], rel=2e-3)
    assert model.attention_flop == paper["C_attn"]
    assert model.kv_bytes == paper["kappa_theoretical"]


def test_sizes_are_the_models_names() -> None:
    for name, model in MODELS.items():
        parameters = float(model.weight_bytes(np.float64(1e9))) / 2e9
        assert parameters == pytest.approx(float(name[:-1]), rel=0.1)
    assert MODELS["235B"].flop / 2e9 == pytest.approx(22, rel=0.05)


def test_times_rise_with_work_and_fall_with_hardware() -> None:
    for model in MODELS:
        times = []
        for gpu in GPUS:
            form = derived(gpu, model)
            line = form.predict(
                np.array([1.0, 8, 64, 256]), np.array([1.0, 8, 64, 256]), np.array([1e3, 8e3, 64e3, 256e3])
            )
            assert (np.diff(line) > 0).all()
            times.append(float(line[0]) * form.gpus)
        assert times == sorted(times, reverse=True)
