"""All of analysis on one kept run: its tables, pages, sections and what its pictures show equal the golden files.

`python -m tests.analysis.test_golden` renews the golden files; with `--run` it first makes the run anew, of an engine:
none, stock, das and a self-draft, two epochs, resumed after the first one.
"""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from os import utime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from PIL import Image

from analysis import (
    arms,
    compare,
    figures,
    page,
    read,
    report,
    sections,
    summary,
    time_spent,
)
from experiments.compare.comparison import arm_changes
from experiments.planned_runs import Run, load, names

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
RUN = GOLDEN / "run"
PUBLISHED = json.loads((ROOT / "experiments" / "papers" / "published.json").read_text())
ARMS = ("none", "stock", "das", "self_draft_adaptive")
MADE = "outputs/golden"  # the kept run's folder when it was made
SIZES = ["data.problems=2", "trainer.max_steps=4", "eval.every=2", "eval.problems=2", "eval.samples=2"]
COMMAND = ["setting=smoke", f"arms=[{','.join(ARMS)}]", *SIZES, "checkpoint.every=2", "wandb=off"]
MINUTE = 1_800_000_000  # when the kept run was made, in seconds since the epoch: its page has the date
KEPT = ("config.yaml", "meta.json", "arms/*/*.yaml", "arms/*/metrics.jsonl", "arms/*/final.json", "arms/*/rollouts/*")
SETTINGS = {"data": {"data": {"name": "programs"}}, "exact": {"engine": {"exact": "distribution"}}}  # of altered runs
BATCH = "per_device_train_batch_size"
NEAR = 1e-4  # relative difference of numbers that counts as equal: another machine may round otherwise
MODULE = "tests.analysis.test_golden"


# ---- what pictures show ----


def shown(axes: Any) -> list[Any]:
    """What axes show: their words, of each line how many points, where they end and their mean, and all bars."""

    def rounded(*values: float) -> list[float]:
        return [float(f"{each:.5g}") for each in values]

    lines = []
    for line in axes.lines:
        xs, ys = (np.asarray(values, float) for values in line.get_data())
        if len(xs):
            numbers = rounded(xs[-1], ys[0], ys[-1], np.nanmean(ys))
            lines.append([line.get_label(), line.get_color(), line.get_linestyle(), len(xs), *numbers])
    bars = [rounded(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches]
    return [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), lines, bars]


@contextmanager
def pictures() -> Iterator[list[Any]]:
    """Inside the `with` block a picture is one white point. Yields what the axes of each one show."""
    found: list[Any] = []

    def save(drawing: Figure, to: Any, format: str) -> None:
        found.append([shown(axes) for axes in drawing.axes])
        to.write("<svg></svg>") if format == "svg" else Image.new("L", (1, 1)).save(to, format)

    with patch.object(Figure, "savefig", save):
        yield found


# ---- what is rendered ----


def kept(folder: Path, names: Sequence[str] = ARMS, **trainer: Any) -> Path:
    """Copy the kept run into `folder`, under other names of arms: what is none, stock or a self-draft stays such, the
    others are das. trainer: settings of the copy. Returns the folder."""
    folder.mkdir(parents=True)
    shutil.copy(RUN / "meta.json", folder)
    utime(folder / "meta.json", (MINUTE, MINUTE))
    set_config(RUN, folder, trainer=trainer)
    for name in names:
        source = name if name in ARMS else ARMS[-1] if name.startswith("self_draft") else "das"
        shutil.copytree(RUN / "arms" / source, folder / "arms" / name)
    (folder / "result.json").write_text(json.dumps(arms.compare_arms(folder, list(names))))
    return folder


def set_config(of: Path, folder: Path, **groups: Mapping[str, Any]) -> None:
    """Write the config of a kept run into a folder, with other settings of its groups."""
    config = json.loads((of / "config.yaml").read_text())
    (folder / "config.yaml").write_text(json.dumps(config | {key: config[key] | of for key, of in groups.items()}))


def planned(run: Run, store: Path) -> Path:
    """The folder of a run that an experiment plans, made of the kept one: a comparison with the same arms, or the
    results of another task (tasks.json)."""
    settings = {key.lstrip("+"): value for key, _, value in (each.partition("=") for each in run.overrides)}
    if (folder := run.folder(store)).exists():
        return folder
    if "task" in settings:
        folder.mkdir(parents=True)
        set_config(RUN, folder)
        for name, content in json.loads((GOLDEN / "tasks.json").read_text())[settings["task"]].items():
            (folder / name).write_text(json.dumps(content))
        return folder
    vary = OmegaConf.from_dotlist([f"{key[5:]}={each}" for key, each in settings.items() if key.startswith("vary.")])
    changes = arm_changes(yaml.safe_load(settings["arms"]), OmegaConf.to_container(vary))  # type: ignore[arg-type]
    sizes = {BATCH: int(settings[f"trainer.{BATCH}"])} if f"trainer.{BATCH}" in settings else {}
    return kept(folder, list(changes), **sizes)


def of_comparison(folder: Path) -> Mapping[str, str]:
    """The result of the kept run, its tables, its page, and its sum over seeds."""
    result = json.loads((kept(folder) / "result.json").read_text())
    folders = {name: folder / "arms" / name for name in ARMS}
    result["time_spent"] = time_spent.of_arms(folders)
    drawn = [*figures.compare_figures(folder, ARMS), time_spent.draw(result["time_spent"], folder / "time_spent.png")]
    page.write_comparison(folder / "page.html", result, drawn, {n: read.metrics(f) for n, f in folders.items()})
    so_far = arms.SoFar(ARMS, ["stock"], 4)
    steps = zip(*(read.metrics(each) for each in folders.values()), strict=True)
    said = [line for of_step in steps for line in map(so_far.add, of_step) if line]
    texts = [
        *said,
        *(arms.aligned(arms.table(result, name)) for name in ("short", "comparison")),
        arms.boxed("verdict", arms.verdict_lines(result)),
        printed(summary.main, [str(folder)]),
        printed(summary.main, [str(folder / "arms"), "--by", "arm.method"]),
    ]
    files = {"result.json": json.dumps(result, indent=1), "tables.md": "\n\n".join(texts)}
    return files | {"page.html": without_pictures(folder / "page.html")}


def without_pictures(path: Path) -> str:
    return re.sub(r"base64,[^']*", "base64,", path.read_text())


def printed(main: Callable[[list[str]], None], words: list[str]) -> str:
    with redirect_stdout(StringIO()) as out:
        main(words)
    return out.getvalue().strip()


def altered(name: str, row: dict[str, Any]) -> dict[str, Any] | None:
    """A row of an arm that differs from das in one thing; None if it has no such step."""
    step = row["step"]
    if name == "one bit" and step == 3:
        return row | {"loss": math.nextafter(row["loss"], 1)}
    if name == "other tokens" and step >= 2:
        return row | {"completions_digest": "0123456789", "tokens": row["tokens"] + 1}
    if name == "not finite":
        return row | {"grad_norm": math.nan}
    if name == "no digests":
        return {key: value for key, value in row.items() if not key.endswith("digest")}
    return row if name != "shorter" or step <= 2 else None


def set_rows(arm: Path, name: str) -> None:
    """Alter the rows of an arm, a copy of das."""
    rows = [altered(name, row) for row in read.metrics(arm)]
    (arm / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row))


def of_runs(folder: Path) -> Mapping[str, str]:
    """Reports on runs that differ in one thing, by python -m analysis.compare; and the page of some."""
    das = kept(folder / "kept") / "arms" / "das"
    reports = []
    for name in ("equal", "one bit", "other tokens", "not finite", "no digests", "shorter", "weights", "data", "exact"):
        other = Path(shutil.copytree(das, folder / name))
        set_rows(other, "other tokens" if name == "data" else name)
        if name == "weights":
            (other / "final.json").write_text(json.dumps(read.final(das) | {"final_weights": "0123456789"}))
        set_config(das, other, **SETTINGS.get(name, {}))
        reports += [found.lines for found in compare.compare(compare.gather([str(das), str(other)]))]
    whole = compare.compare(compare.gather([str(folder / "kept")]), folder / "curves.html")
    text = "\n".join("\n".join([*lines, ""]) for lines in [*reports, *(each.lines for each in whole)])
    return {"runs.md": text, "curves.html": (folder / "curves.html").read_text()}


def of_report(folder: Path) -> Mapping[str, str]:
    """Every section of the report, of runs with the arms that the experiments plan."""
    made = []
    for name in names():
        experiment = load(name, "small", [])
        runs = {label: planned(run, folder) for label, run in experiment.runs.items()}
        made.append(sections.section(name, experiment.title, runs, PUBLISHED, folder))
    differs = kept(folder / "differs", ["none", "das"])
    set_rows(differs / "arms" / "das", "other tokens")
    (differs / "result.json").write_text(json.dumps(arms.compare_arms(differs, ["none", "das"])))
    made.append(sections.section("ablation_", "Ablation that changes tokens", {"one": differs}, PUBLISHED, folder))
    claims = [each for section in made for each in section.orderings]
    report.write_page(folder / "r.html", "Report", report.summary(claims), ["One run."], None, {"All": made[:2]})
    return {"report.md": report.markdown("Report", "", made), "report.html": without_pictures(folder / "r.html")}


def rendered(folder: Path) -> dict[str, str]:
    """Golden file -> its content."""
    with pictures() as drawn:
        made = [of(folder / of.__name__) for of in (of_comparison, of_runs, of_report)]
        figures.main(folder)
    texts = {name: text for each in made for name, text in each.items()}
    return {"pictures.jsonl": "\n".join(map(json.dumps, drawn)) + "\n", **texts}


# ---- the test, and what renews the files ----


def parts(text: str) -> list[str | float]:
    """A text in pieces, its numbers as such."""
    return [
        float(each) if i % 2 else each for i, each in enumerate(re.split(r"(?<![\w#])(-?\d+(?:\.\d+)?)(?!\w)", text))
    ]


def test_everything_rendered_equals_the_golden_files(tmp_path: Path) -> None:
    found = rendered(tmp_path)
    assert {path.name for path in GOLDEN.iterdir() if path.is_file()} == {*found, "tasks.json"}
    assert {path.name for path in figures.DOCS.rglob("*.png")} <= {path.name for path in tmp_path.iterdir()}
    for name, text in found.items():
        ours, golden = (parts(each) for each in (text, (GOLDEN / name).read_text()))
        for i, (a, b) in enumerate(zip(ours, golden, strict=False)):
            same = math.isclose(a, b, rel_tol=NEAR) if isinstance(a, float) and isinstance(b, float) else a == b
            around = "".join(map(str, ours[max(0, i - 8) : i + 8]))
            assert same, f"{name}: {a!r} in place of {b!r}, at: {around}; python -m {MODULE} renews it"
        assert len(ours) == len(golden), name


def make_run(folder: Path) -> None:
    """Make the kept run anew, resumed after its first epoch."""
    place, python = folder / "run", [sys.executable, "run.py"]
    command = [*python, *COMMAND, f"hydra.run.dir={place}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as begun:
        assert begun.stdout is not None
        while not begun.stdout.readline().startswith("step   3/"):
            assert begun.poll() is None
        begun.send_signal(signal.SIGTERM)
        begun.stdout.read()
    subprocess.run([*python, f"resume={place}"], cwd=ROOT, check=True)
    keep_run(place)


def keep_run(place: Path) -> None:
    """Keep what analysis reads of a run."""
    shutil.rmtree(RUN, ignore_errors=True)
    for path in [path for pattern in KEPT for path in place.glob(pattern)]:
        new = RUN / path.relative_to(place)
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, new)
        if path.name == "config.yaml":  # JSON is YAML, in one line
            content = json.dumps(read.config(path.parent))
        elif path.name == "meta.json":
            content = path.read_text()
        else:
            continue
        new.write_text(content.replace(str(place), MADE) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if "--run" in sys.argv:
            make_run(Path(made))
        for file, content in rendered(Path(made) / "rendered").items():
            (GOLDEN / file).write_text(content)
