"""The page of task=advise: one self-contained HTML file."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.advice{font-size:1.2rem;padding:1rem;background:#eef4fb;"
    "border-left:4px solid #2b6cb0}img{max-width:100%;height:auto}li{color:#555}"
)


def write(
    path: Path,
    advice: str,
    about: Sequence[str],
    arms: Mapping[str, Mapping[str, float]],
    curve: Sequence[tuple[int, float]],
    timelines: Mapping[str, Mapping[str, Any]],
    scale: float,
) -> None:
    """Write the page. scale: requests that each simulated one stands for."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{row['rollout_s']:.1f}</td><td>{row['rollout_change']:+.1%}</td>"
        f"<td>{span(row).lstrip(', ')}</td><td>{row['step_s']:.1f}</td>"
        f"<td>{row['step_change']:+.1%}</td><td>{row['tokens_per_pass']:.2f}</td></tr>"
        for name, row in arms.items()
    )
    path.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Will speculation pay?</title><style>{STYLE}</style><h1>Will speculation pay for these rollouts?</h1>"
        "<p "
        f"class='advice'>{html.escape(advice)}</p><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in about)}</ul>"
        "<table><tr><th>arm</th><th>rollout, s</th><th>change</th><th>range</th><th>step, s</th><th>change</th>"
        f"<th>tokens a pass</th></tr>{rows}</table><p>Range: drafted tokens cost 30 % less or more than the latency "
        "model "
        "says, where it was simulated. suffix-like is this project's drafter at suffix decoding's settings. w4, "
        "eagle and "
        "mtp are models at the given acceptance, switched on once they pay.</p>"
        f"<p>{_image(_bars(arms))}</p><p>{_image(_live(timelines, scale))}</p><p>{_image(_speedup(curve))}</p></html>"
    )


def span(row: Mapping[str, float]) -> str:
    """The range of an arm's change, where its price was varied."""
    if row["low_s"] == row["high_s"]:
        return ""
    return f", {row['low_change']:+.1%} to {row['high_change']:+.1%}"


def _figure() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(8, 3.4), layout="constrained")


def _image(figure: Any) -> str:
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"


def _bars(arms: Mapping[str, Mapping[str, float]]) -> Any:
    figure, axes = _figure()
    values = [row["rollout_s"] for row in arms.values()]
    errors = [[v - row["low_s"] for v, row in zip(values, arms.values(), strict=True)]]
    errors.append([row["high_s"] - v for v, row in zip(values, arms.values(), strict=True)])
    errors = [[max(0.0, e) for e in side] for side in errors]
    axes.bar(list(arms), values, yerr=errors, color="#2b6cb0", capsize=3)
    axes.set(ylabel="rollout time (s)", title="Expected rollout time")
    return figure


def _live(timelines: Mapping[str, Mapping[str, Any]], scale: float) -> Any:
    figure, axes = _figure()
    for name, line in timelines.items():
        axes.step(line["time_s"], line["live"] * scale, where="post", label=name)
    axes.set(
        xlabel="time in rollout (s)", ylabel="live requests an engine", title="Live requests, last step", ylim=(0, None)
    )
    axes.legend()
    return figure


def _speedup(curve: Sequence[tuple[int, float]]) -> Any:
    figure, axes = _figure()
    axes.plot([live for live, _ in curve], [gain for _, gain in curve], "o-")
    axes.axhline(1, color="0.6", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="live requests an engine", ylabel="speedup of decoding", title="What a pass gains, by live requests"
    )
    return figure
