"""Make the table that task=force prints."""

from collections.abc import Mapping
from typing import Any

from analysis.arms import aligned


def force_table(result: Mapping[str, Any]) -> str:
    """Return a table with a line for each arm: rollout time (overall and by live requests), tokens per pass, replay
    error. result: the content of result.json."""
    live = list(result["ratio_to_none"]["none"]["rollout_s"]["by_live"])
    of_stock = result.get("ratio_to_stock")
    header = ["arm", "rollout s", "of none", *(f"{n} live" for n in live)]
    header += ["of stock", *(f"{n} live" for n in live)] if of_stock else []
    header.append("processor, of none")
    lines = [[*header, "tokens/pass", "drafted", "accepted", "replayed"]]
    for name, arm in result["arms"].items():
        cells = [name, f"{arm['rollout_s']:.2f}"]
        for ratios in (result["ratio_to_none"], of_stock):
            if ratios:
                ratio = ratios[name]["rollout_s"]
                cells += [f"{ratio['overall']:.3f}", *(f"{ratio['by_live'][n]:.3f}" for n in live)]
        cells.append(f"{result['ratio_to_none'][name]['processor_s']['overall']:.3f}")
        error = result["replay_error"].get(name)
        cells += [f"{arm['tokens_per_pass']:.2f}", str(arm["drafted"]), str(arm["accepted"])]
        lines.append([*cells, "" if error is None else f"{error:+.1%}"])
    return f"\n{aligned(lines)}\n\n{_at_row_prices(result['ratio_at_row_price'], live)}\n"


def _at_row_prices(at_price: Mapping[str, Mapping[str, Any]], live: list[str]) -> str:
    lines = [["replayed, of none", "row price", "overall", *(f"{n} live" for n in live)]]
    for price, arms in at_price.items():
        for arm, ratio in arms.items():
            cells = [f"{value:.3f}" for value in (ratio["overall"], *(ratio["by_live"][n] for n in live))]
            lines.append([arm, f"{price} of measured", *cells])
    return aligned(lines) if len(lines) > 1 else ""
