"""The arm stock in a comparison's result: compared in distribution, with times against it beside those against none."""

import json
from pathlib import Path

import numpy as np
import pytest
import steps_on_disk
from test_sections import made, write_arm, write_result, write_rows

from analysis.arms import compare_arms, full_table, identity_verdict, short_table
from analysis.distribution import (
    UNLIKELY,
    compare_distributions,
    distribution_verdict,
    kolmogorov_smirnov,
    sign_flip,
    standard_error,
    visible_from,
)
from analysis.record import Record


def write_comparison(folder: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        arm = folder / "arms" / name
        write_arm(arm, 4, 8.0 / (i + 1), [0] * 4, 0)
        (arm / "config.yaml").write_text(f"arm: {{name: {name}, method: {name}}}\n")
        rows = [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row["length_mean"] = 8.0 + i
            if name == "stock":
                row |= {"completions_digest": "other", "loss": 0.3, "reward": 0.4}
        write_rows(arm, rows)
    return folder


def test_stock_is_compared_in_distribution(tmp_path: Path) -> None:
    result = compare_arms(write_comparison(tmp_path, "none", "stock", "das"), ["none", "stock", "das"])
    assert list(result["identical"]) == ["das"]
    assert result["ratio_to_none"]["stock"]["rollout_s"]["overall"] == pytest.approx(0.5)
    assert list(result["ratio_to_stock"]) == ["none", "das"]
    assert result["ratio_to_stock"]["das"]["rollout_s"]["overall"] == pytest.approx(2 / 3)
    assert result["ratio_to_stock"]["das"]["step_s"]["by_epoch"]["1"] == pytest.approx(2 / 3)
    found = result["distribution"]["stock"]
    first = found["kolmogorov_smirnov"]
    assert (first["statistic"], first["p_value"], first["n"]) == (0.0, 1.0, [2, 2])
    assert first["visible_from"] > 1, "two responses show nothing"
    assert (found["length"]["difference"], found["length"]["difference_standard_error"]) == (1.0, 0.0)
    assert (found["reward"]["mean"], found["reward"]["baseline_mean"]) == (pytest.approx(0.4), 0.5)
    identity, stock = identity_verdict(result).splitlines()
    assert identity.startswith("identical: yes  (das against none")
    assert stock.startswith("stock: compared in distribution: no difference found")
    assert "n = 2 and 2: too few to see any" in stock
    header, none, stock_line, das = full_table(result)
    assert header[-1] == "step of stock"
    assert (stock_line[-1], das[-1], none[-1]) == ("1", "0.667", "2.000")
    column = [line[4] for line in short_table(result)]
    assert column == ["of stock", "2.000", "1", "0.667"]


def verdict(folder: Path, lengths: tuple[float, float], rewards: tuple[float, float] = (0.5, 0.5)) -> str:
    """Of two arms with 16 steps of 16 responses, whose median lengths and rewards are these."""
    rng = np.random.default_rng(1)
    rows: list[list[dict[str, float]]] = []
    for name, median, reward in zip(("none", "stock"), lengths, rewards, strict=True):
        of_steps = np.maximum(1, rng.lognormal(np.log(median), 0.6, (16, 16))).astype(int)
        steps_on_disk.write_arm(
            folder / name, (), [[{"response_ids": [0] * length} for length in of_steps[0].tolist()]]
        )
        scores = rng.binomial(16, reward, 16) / 16
        rows.append([{"length_mean": n, "reward": r} for n, r in zip(of_steps.mean(1), scores, strict=True)])
    return distribution_verdict("stock", "none", compare_distributions(folder / "none", folder / "stock", *rows))


def test_the_verdict_can_fail(tmp_path: Path) -> None:
    same = verdict(tmp_path / "same", (300, 300))
    assert same.startswith("stock: compared in distribution: no difference found")
    assert "n = 16 and 16: sees 0.69 or more" in same
    assert "DIFFERENT lengths of step 1, lengths (" in verdict(tmp_path / "far", (300, 1500))
    # A difference that 16 responses cannot show shows over 16 steps.
    assert "DIFFERENT lengths (" in verdict(tmp_path / "near", (300, 480))
    assert "DIFFERENT reward (" in verdict(tmp_path / "reward", (300, 300), (0.3, 0.6))


def test_the_smallest_visible_difference_is_where_the_p_value_is_unlikely() -> None:
    from scipy.stats import kstwobign

    visible = visible_from(200, 300)
    assert kstwobign.sf(visible * (200 * 300 / 500) ** 0.5) == pytest.approx(UNLIKELY, rel=1e-6)


def test_a_paired_difference_is_judged_by_swapped_pairs() -> None:
    assert sign_flip(np.zeros(20)) == 1.0
    assert sign_flip(np.ones(4)) == pytest.approx(2 / 16, abs=0.02), "four pairs show little"
    assert sign_flip(np.full(20, 0.1)) < UNLIKELY
    assert sign_flip(np.array([1.0, -1.1, 0.9, -1.0, 1.2, -0.9])) > 0.5


def test_without_stock_nothing_is_added(tmp_path: Path) -> None:
    result = compare_arms(write_comparison(tmp_path, "none", "das"), ["none", "das"])
    assert {"ratio_to_stock", "distribution"}.isdisjoint(result)
    assert "stock" not in identity_verdict(result)
    assert not any("stock" in cell for line in [*full_table(result), *short_table(result)] for cell in line)


def test_ablations_have_a_column_of_stock_only_where_it_was_run(tmp_path: Path) -> None:
    with_stock, without = tmp_path / "a", tmp_path / "b"
    for folder, names in ((with_stock, ("none", "stock", "das")), (without, ("none", "das"))):
        write_result(write_comparison(folder, *names), names)
    both = made("ablation", {"a": with_stock, "b": without}, tmp_path).table
    assert both is not None
    assert both.header[-1] == "of stock"
    assert [(row[0], *row[-2:]) for row in both.rows] == [("a", "yes", "0.667"), ("b", "yes", "")]
    alone = made("ablation", {"b": without}, tmp_path).table
    assert alone is not None
    assert [alone.header[-1], alone.rows[0][0], alone.rows[0][-1]] == ["identical to none", "das", "yes"]


def test_kolmogorov_smirnov_is_scipys() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    for shift in (0.0, 0.2, 1.0):
        a, b = rng.normal(size=300), rng.normal(shift, size=200)
        for x, y in ((a, b), (a.round(1), b.round(1))):
            theirs = ks_2samp(x, y, method="asymp")
            statistic, p_value = kolmogorov_smirnov(list(x), list(y))
            assert statistic == pytest.approx(theirs.statistic)
            # scipy's p-value has a correction for small samples.
            assert p_value == pytest.approx(theirs.pvalue, abs=0.05)
    assert kolmogorov_smirnov([1, 2], [1, 2]) == (0.0, 1.0)
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)


def test_nothing_compared_is_not_called_equal(tmp_path: Path) -> None:
    for names, text, identical in (
        (("none", "stock"), "not compared", False),
        (("none", "stock", "das"), "equal in every bit", True),
    ):
        run = write_result(write_comparison(tmp_path / str(len(names)), *names), names)
        assert Record(run).identity.startswith(text)
        assert Record(run).identical == identical
