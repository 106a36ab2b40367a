"""Times of passes: latency.json written, read again, and refused if it is something else; forms and their fits, on
times made from known constants, with noise and interruptions; grids; derived times."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_passes import DRAFTING, made_passes
from refusals import one_line

from experiments.simulate.times import (
    FITS,
    Affine,
    Drafting,
    Form,
    Grid,
    PassWork,
    read_latency,
    relative_error,
    write_latency,
)
from experiments.tasks.advise import chosen_times

FORM = Drafting(base=5e-3, row=1e-4, drafting=0.0, token=3e-5)


def rows(growing: int = 0) -> list[list[float]]:
    """Two passes of each of 4 x 3 combinations. growing: tokens of context that each pass adds."""
    passes: list[list[float]] = []
    for live in (1, 2, 8, 32):
        for drafts in (0, 2, 8):
            for turn in range(2):
                b, n = float(live), float(live * (1 + drafts))
                seconds = float(FORM.predict(np.array(b), np.array(n), np.array(0.0)))
                passes.append([b, n, live * (100.0 + growing * len(passes)), seconds * (1 + 0.01 * turn)])
    return passes


@pytest.mark.parametrize("growing", [0, 7])
def test_what_was_measured_is_found_again(tmp_path: Path, growing: int) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, rows(growing), "nothing real")
    form, source = read_latency(path)
    assert source == "nothing real, measured"
    b, n = np.array([1.0, 5.0, 20.0]), np.array([3.0, 25.0, 60.0])
    expected = 1.005 * FORM.predict(b, n, np.zeros(3))
    assert form.predict(b, n, 100 * b) == pytest.approx(expected)


BAD = ({"passes": []}, {"columns": ["live", "seconds"]}, {"passes": [[1, 1, 0]]}, {"passes": [[1, 1, 0, -1.0]]},
       {"passes": [[1, 0, 0, 1.0]]}, {"passes": [[1, 1, 0, float("nan")]]},
       {"passes": [[1, 1, 0, 1.0], [2, 4, 0, 1.0]]}, {"passes": "many"},
       b"{}", b"no", b"[1]", b"\xff\xfe{")  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_files_are_one_line(tmp_path: Path, bad: dict[str, object] | bytes) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, rows(), "nothing real")
    path.write_bytes(bad if isinstance(bad, bytes) else json.dumps(json.loads(path.read_text()) | bad).encode())
    with one_line("task.latency"):
        read_latency(path)


def test_computed_times_come_with_those_of_stock() -> None:
    times = chosen_times(SimpleNamespace(step_ms=None, latency=None, gpu="H200", model="8B", draft_us=8))
    assert times.source.startswith("8B on 1 x H200 by physics")
    assert times.stock is not None
    work = PassWork(16, 64, 16 * 1000, 40, asked=16)
    assert times.stock.seconds(work.undrafted()) < times.das.seconds(work) < 1.0


AFFINE = Affine(c_base=5e-3, c_tok=5e-5)
TRUTHS: dict[str, Form] = {"affine": AFFINE, "drafting": DRAFTING}


@pytest.mark.parametrize("name", FITS)
def test_fit_recovers_the_constants(name: str) -> None:
    seen = made_passes(TRUTHS[name], 600, noise=0.0)
    fitted = FITS[name](seen)
    assert vars(fitted) == pytest.approx(vars(TRUTHS[name]), rel=1e-6)


@pytest.mark.parametrize("name", FITS)
def test_noise_and_interruptions_hardly_move_the_fit(name: str) -> None:
    """One pass in six was interrupted. The fit still predicts the times of undisturbed passes."""
    seen = made_passes(TRUTHS[name], 600, noise=0.1, interrupted=1 / 6)
    fitted = FITS[name](seen)
    assert relative_error(fitted, made_passes(TRUTHS[name], 600, noise=0.0)) < 0.05


def test_grid_is_linear_between_its_points_and_beyond() -> None:
    """A grid reproduces, at any point, a form that is linear in requests and in drafts and context per request."""
    live, drafts, context = np.array([1.0, 4.0, 16.0]), np.array([0.0, 2.0, 8.0]), np.array([0.0, 100.0])
    b, d, c = np.meshgrid(live, drafts, context, indexing="ij")
    form = Drafting(5e-3, 1e-4, 0.0, 3e-4)
    grid = Grid(live, drafts, context, form.predict(b, b + b * d, b * c) + 1e-7 * b * c)
    random = np.random.default_rng(0)
    b, d, c = random.integers(1, 40, 50).astype(float), random.uniform(0, 16, 50), random.uniform(0, 300, 50)
    predicted = grid.predict(b, b * (1 + d), b * c)
    assert predicted == pytest.approx(form.predict(b, b * (1 + d), b * c) + 1e-7 * b * c)
    assert Grid(live[:1], drafts[:1], context[:1], np.full((1, 1, 1), 2.0)).predict(9.0, 20.0, 5.0) == 2.0
