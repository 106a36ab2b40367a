"""Write compared runs as one self-contained HTML page. It has the panels of a W&B report, but needs no account."""

import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from analysis import page, panels, read, time_spent
from analysis.arms import full_table
from analysis.verdict import headline, verdict_lines

MEANINGS = (  # of the columns of the long table; docs/reference.md has the rest
    "drafted, accepted: tokens that a drafter proposed, and those of them that equalled the policy's own. tokens/pass: "
    "emitted tokens of a request per pass of the policy. draft share: the part of the rollout time that drafting took. "
    "tail passes: passes with at most 4 live requests."
)


FOLDED: page.Part = ("end", None)
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


def write(
    path: Path,
    table: Sequence[Sequence[str]],
    lines: Sequence[str],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Write the page of any runs.

    table: the first line is the header. lines: the report of differences. runs: name -> rows of metrics.jsonl.
    """
    different = ("chapter", "What differs"), ("lines", lines)
    parts: list[page.Part] = [("table", table), *different, ("chapter", "Panels"), *_panels(runs)]
    page.write(path, f"Curves: {', '.join(runs)}", [], parts)


def write_comparison(
    path: Path, result: Mapping[str, Any], figures: Sequence[Path], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Write the page of a finished comparison of arms.

    result: the content of its result.json. figures: its PNG files. runs: arm -> rows of metrics.jsonl.
    """
    files = [["file", "content"], *([name, words] for name, words in FILES.items() if any(path.parent.glob(name)))]
    large, *small = (page.picture(figure, figure.stem.replace("_", " ")) for figure in figures)
    parts: list[page.Part] = [
        *(("text", _facts(path.parent)), large),
        *(("chapter", "All numbers"), ("table", list(zip(*full_table(result), strict=True))), ("text", MEANINGS)),
        *_spent(result.get("time_spent", {})),
        *(("fold", "Requests and budgets, pass by pass"), *small, *_replayed(result.get("replay_error", {})), FOLDED),
        *(("fold", "Curves of all metrics"), *_panels(runs), FOLDED),
        *(("chapter", "Files of this folder"), ("files", files)),
    ]
    lines = verdict_lines(result)
    tested = [line for line in lines if "compared in distribution" in line]
    box = [line for line in lines if line not in tested]
    page.write(path, headline(result), box, [*parts[:2], ("list", tested), *parts[2:]])


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


def _replayed(errors: Mapping[str, float]) -> list[page.Part]:
    each = ", ".join(f"{name} {error:+.1%}" for name, error in errors.items())
    words = f"How far rollout times are off when the simulator replays this run: {each}."
    return [("text", words)] if errors else []


def _spent(found: Mapping[str, Mapping[str, float]]) -> list[page.Part]:
    words = "The floors: what rollouts would take if drafting were free, and if every drafted token had been right."
    parts = [("chapter", "Where the time goes"), ("table", time_spent.table(found)), ("text", words)] if found else []
    return parts


def _panels(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[page.Part]:
    picture = io.StringIO()
    panels.draw(runs, panels.PANELS, picture, "svg")
    svg = picture.getvalue()
    return [("svg", svg[svg.index("<svg") :])]
