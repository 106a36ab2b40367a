"""The HTML pages of comparisons, of any runs and of task=advise, by the template page.html. Each page is one file,
without scripts."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes

from analysis import read, time_spent
from analysis.arms import headline, table, verdict_lines
from analysis.figures import COLOURS, PANELS, draw_panels, figure
from das.general.files import write_text

# A kind of part (page.html lists them), and what it shows. Of a table: its header and its rows.
Part = tuple[str, Any]


def write(
    path: Path,
    title: str,
    box: Sequence[str],
    parts: Sequence[Part],
    width: int = 75,
    classes: Mapping[str, str] | None = None,
) -> None:
    """Write a page. box: the lines of the box that opens it. width: of the text, in rem. classes: of a report, the CSS
    classes of cells by their text."""
    files = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=files, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    given = {"title": title, "box": box, "parts": parts, "width": width}
    page = template.get_template("page.html").render(given, classes=classes or {}, report=classes is not None)
    write_text(path, page)


def picture(png: Path | bytes, title: str) -> Part:
    """Return a picture that embeds a PNG file."""
    data = base64.b64encode(png if isinstance(png, bytes) else png.read_bytes()).decode()
    return "picture", (title, data)


MEANINGS = (  # of the columns of the long table; docs/reference.md has the rest
    "drafted, accepted: tokens that a drafter proposed, and those of them that equalled the policy's own. tokens/pass: "
    "emitted tokens of a request per pass of the policy. draft share: the part of the rollout time that drafting took. "
    "tail passes: passes with at most 4 live requests."
)


FOLDED: Part = ("end", None)
FILES = {  # of a comparison's folder -> what they are
    "result.json": "every number of this page, with n, mean, spread",
    "metrics.jsonl": "a row for each step and arm",
    "rollout_and_reward.png": "rollout time and reward, the first picture above",
    "live_requests.png": "how many requests still run, over the longest rollout",
    "time_spent.png": "where the seconds of a step go, arm by arm",
    "budget_*.png": "the drafted tokens of that rollout, pass by pass, for each arm that drafts",
    "config.yaml": "all settings; meta.json: commit, versions, machine and command; overrides.json: what was typed",
    "arms/*/rollouts": "every response of an arm with its times",
    "arms/*/checkpoints": "the last policy of each arm, for policy.path=",
}


def write_runs(
    path: Path, table: Sequence[Sequence[str]], lines: Sequence[str], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Write the page of any runs.

    table: the first line is the header. lines: the report of differences. runs: name -> rows of metrics.jsonl.
    """
    different = ("chapter", "What differs"), ("lines", lines)
    parts: list[Part] = [("table", table), *different, ("chapter", "Panels"), *_panels(runs)]
    write(path, f"Curves: {', '.join(runs)}", [], parts)


def write_comparison(
    path: Path, result: Mapping[str, Any], figures: Sequence[Path], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Write the page of a finished comparison of arms.

    result: the content of its result.json. figures: its PNG files. runs: arm -> rows of metrics.jsonl.
    """
    files = [["file", "content"], *([name, words] for name, words in FILES.items() if any(path.parent.glob(name)))]
    large, *small = (picture(figure, figure.stem.replace("_", " ")) for figure in figures)
    lines, numbers = verdict_lines(result), list(zip(*table(result, "comparison"), strict=True))
    tested = [line for line in lines if "compared in distribution" in line]
    parts: list[Part] = [
        *(("text", _facts(path.parent)), large, ("list", tested)),
        *(("chapter", "All numbers"), ("table", numbers), ("text", MEANINGS)),
        *_spent(result.get("time_spent", {})),
        *(("fold", "Requests and budgets, pass by pass"), *small, *_replayed(result.get("replay_error", {})), FOLDED),
        *(("fold", "Curves of all metrics"), *_panels(runs), FOLDED),
        *(("chapter", "Files of this folder"), ("files", files)),
    ]
    write(path, headline(result), [line for line in lines if line not in tested], parts)


def _facts(folder: Path) -> str:
    """Return what was run, and on what, in one line."""
    meta, config = read.meta(folder), read.config(folder)
    policy = config["policy"].get("name") or config["policy"].get("path")
    facts = [
        *(f"policy {policy}", f"data {config['data']['name']}", f"{config['trainer']['max_steps']} steps"),
        *(f"{meta['cores']} cores of {meta['device']}", f"commit {meta['commit'][:8]}"),
        datetime.fromtimestamp((folder / "meta.json").stat().st_mtime).strftime("%Y-%m-%d"),
    ]
    return f"{', '.join(facts)}. {meta['command']}"


def _replayed(errors: Mapping[str, float]) -> list[Part]:
    each = ", ".join(f"{name} {error:+.1%}" for name, error in errors.items())
    words = f"How far rollout times are off when the simulator replays this run: {each}."
    return [("text", words)] if errors else []


def _spent(found: Mapping[str, Mapping[str, float]]) -> list[Part]:
    words = "The floors: what rollouts would take if drafting were free, and if every drafted token had been right."
    parts = [("chapter", "Where the time goes"), ("table", time_spent.table(found)), ("text", words)] if found else []
    return parts


def _panels(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Part]:
    drawn = io.StringIO()
    draw_panels(runs, PANELS, drawn, "svg")
    svg = drawn.getvalue()
    return [("svg", svg[svg.index("<svg") :])]


ADVICE = (  # columns: header, and the cell of an arm
    *(("rollout (s)", "{rollout_s:.1f}"), ("change", "{rollout_change:+.1%}"), ("range of change", "{range}")),
    *(("step (s)", "{step_s:.1f}"), ("change", "{step_change:+.1%}"), ("tokens per pass", "{tokens_per_pass:.2f}")),
)


def write_advice(
    path: Path,
    answers: Sequence[str],
    facts: Sequence[str],
    arms: Mapping[str, Mapping[str, float]],
    curve: Sequence[tuple[int, float, float]],
    timelines: Mapping[str, Mapping[str, Any]],
    scale: float,
) -> None:
    """Write the page.

    answers: the line of advice, and the two answers. facts: lines about the simulation. arms: name -> its row of `arms`
    in result.json. curve: (live requests, expected speedup, speedup if drafts cost more). timelines: arm -> time_s (the
    end of each pass, in seconds) and live (requests in it). scale: the number of requests that each simulated request
    stands for.
    """
    rows = [
        [name, *(cell.format(**row, range=span(row).lstrip(", ")) for _, cell in ADVICE)] for name, row in arms.items()
    ]
    notes = [
        "The range is the change if drafted tokens cost 30 % less or 30 % more than the times of passes say. It does "
        "not cover the choice of sampled problems.",
        "suffix-like is this project's drafter at suffix decoding's settings.",
        "A step is the rollout and the rest of the training step, which speculation does not change.",
    ]
    table = (["drafts", *(header for header, _ in ADVICE)], *rows)
    parts: list[Part] = [("list", facts), ("table", table), *(("text", note) for note in notes)]
    parts += [_picture(_bars, arms), _picture(_live_requests, timelines, scale), _picture(_speedup, curve)]
    write(path, "Will speculation pay for these rollouts?", answers, parts, width=60)


def span(row: Mapping[str, float]) -> str:
    """Return the range of an arm's change of time as ", LOW to HIGH"; "" if the cost of its drafts was not varied."""
    if row["low_s"] == row["high_s"]:
        return ""
    return f", {row['low_change']:+.1%} to {row['high_change']:+.1%}"


def _picture(draw: Callable[..., None], *given: Any) -> Part:
    """Return what `draw` draws on axes, as a picture of a page."""
    png = io.BytesIO()
    with figure(png, size=(8, 3.4)) as axes:
        draw(axes, *given)
        title = axes.get_title()
    return picture(png.getvalue(), title)


def _bars(axes: Axes, arms: Mapping[str, Mapping[str, float]]) -> None:
    axes.barh(list(arms), [row["rollout_s"] for row in arms.values()], color=COLOURS["das"])
    for name, row in arms.items():
        if row["low_s"] != row["high_s"]:
            axes.plot([row["low_s"], row["high_s"]], [name, name], "|-", color="black")
    axes.invert_yaxis()
    axes.set(xlabel="rollout time (s)", title="Expected rollout time and its range")


def _live_requests(axes: Axes, timelines: Mapping[str, Mapping[str, Any]], scale: float) -> None:
    for name, line in timelines.items():
        axes.step(line["time_s"], line["live"] * scale, where="post", label=name)
    axes.set(
        xlabel="time in rollout (s)",
        ylabel="live requests per engine",
        title="Live requests in the last simulated step",
        ylim=(0, None),
    )
    axes.legend()


def _speedup(axes: Axes, curve: Sequence[tuple[int, float, float]]) -> None:
    live = [point[0] for point in curve]
    axes.plot(live, [point[1] for point in curve], "o-", label="expected")
    axes.plot(live, [point[2] for point in curve], "o--", label="if drafts are dearer")
    axes.axhline(1, color="0.6", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(live[::2], [str(n) for n in live[::2]])
    axes.minorticks_off()
    axes.set(
        xlabel="live requests per engine",
        ylabel="speedup of decoding",
        title="Speedup of decoding at the best draft limit",
    )
    axes.legend()
