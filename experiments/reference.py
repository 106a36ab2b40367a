"""Write the generated parts of docs/reference.md: `python -m experiments.reference`.

Tasks come from the heads of configs/task/*.yaml. A setting's value and meaning come from configs/, what fits it from
its class in experiments/settings, and what excludes what from the rules there. Metrics come from analysis/metrics.yaml.
A test fails if the page is out of date.
"""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

from analysis.figures import ACCURACY, PANELS
from analysis.metrics import METRICS
from das.general.files import write_text
from experiments.settings.checked import fits, schema_at
from experiments.settings.config import CHOICES, RULES, RunConfig
from experiments.settings.tasks import TASKS, Task

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PAGE = CONFIGS.parent / "docs" / "reference.md"
GROUPS = ("trainer", "engine", "drafter", "budget", "cluster", "reward")  # whose keys the page lists
PART = re.compile(r"(<!-- made: (\w+) -->).*?(<!-- end -->)", re.DOTALL)
EVALUATED = f"| {ACCURACY.title} | `eval/pass_at_1`, and `eval/pass_at_K` of the largest K |"
KEY = re.compile(r"^( *)(\w+):(?: +([^#\s].*?))?(?:\s+# (.*))?$")


class Setting(NamedTuple):
    """A key of a config file: its path with dots, its value, and the comment beside it."""

    name: str
    value: str
    meaning: str


def _settings(path: Path) -> Iterator[Setting]:
    """The keys of a file, without its list of defaults and Hydra's own. A comment may go on in lines of its own."""
    folders: list[tuple[int, str]] = []
    found: list[Setting] = []
    for line in path.read_text().splitlines():
        if (key := KEY.match(line)) and not line.startswith("#"):
            depth, name, value, meaning = len(key[1]), key[2], key[3] or "", key[4] or ""
            folders = [folder for folder in folders if folder[0] < depth]
            dotted = ".".join([*(folder[1] for folder in folders), name])
            if not value:
                folders.append((depth, name))
            found.append(Setting(dotted, value, meaning))
        elif found and re.match(r"^\s{8,}# ", line):
            found[-1] = found[-1]._replace(meaning=f"{found[-1].meaning} {line.strip().removeprefix('# ')}")
    hidden = ("defaults", "hydra", "name")
    return (each for each in found if each.name.split(".")[0] not in hidden and (each.value or each.meaning))


def _text(comment: str) -> str:
    """A comment as a cell of a table: pages become links, and `a | b` becomes `a, b`."""
    cell = comment.replace(" | ", ", ").replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"docs/(\w+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", cell)


def _head(path: Path) -> str:
    """The first sentence of the comment that heads a file."""
    lines = takewhile(lambda line: line.startswith("# "), path.read_text().splitlines())
    words = " ".join(line.removeprefix("# ") for line in lines if not line.startswith("# @"))
    return re.split(r"(?<=[.:]) ", words)[0].rstrip(".:")


HEAD = ["| key | value | what fits | meaning |", "|---|---|---|---|"]


def _row(name: str, value: str, meaning: str) -> str:
    return f"| `{name}` | {value} | {_fitting(name)} | {_text(meaning)} |"


def _fitting(key: str) -> str:
    """What fits a setting, by the class of its group."""
    group, *names = key.split(".")
    kinds = CHOICES[group].groups.values() if group in CHOICES else [RunConfig]
    schemas = [schema_at(kind, names if group in CHOICES else [group, *names]) for kind in kinds]
    return next((fits(schema) for schema in schemas if schema is not None), "")


def _code(value: str) -> str:
    return f"`{value}`" if value else ""


def choices(group: str) -> str:
    """Return a sentence that names the files of a group, with what each says of itself."""
    return "\n".join(
        f"- `{group}={path.stem}`: {_text(_head(path))}." for path in sorted((CONFIGS / group).glob("*.yaml"))
    )


def of_group(group: str) -> str:
    """Return the keys of all files of a group. Where files differ, a cell has the default file's value first."""
    default = re.search(rf"^  - {group}: (\w+)", (CONFIGS / "config.yaml").read_text(), re.MULTILINE)
    files = sorted(
        (CONFIGS / group).glob("*.yaml"), key=lambda path: (path.stem != (default and default[1]), path.stem)
    )
    values: dict[str, list[str]] = {}
    meanings: dict[str, str] = {}
    for path in files:
        for name, value, meaning in _settings(path):
            others = values.setdefault(name, [])
            if path is files[0]:
                others.append(_code(value))
            elif _code(value) not in others:
                others.append(f"{path.stem}: {_code(value)}".rstrip(": "))
            meanings.setdefault(name, meaning)
    rows = [_row(f"{group}.{name}", ", ".join(values[name]), meanings[name]) for name in values]
    return "\n".join([f"#### {group}", "", choices(group), "", *HEAD, *rows])


def settings() -> str:
    """Return the keys of configs/config.yaml, and those of the groups."""
    own = [_row(name, _code(value), meaning) for name, value, meaning in _settings(CONFIGS / "config.yaml")]
    return "\n\n".join(["\n".join([*HEAD, *own]), *(of_group(group) for group in GROUPS)])


def groups() -> str:
    """Return a table of the config groups, from the list of defaults in configs/config.yaml."""
    found = re.findall(r"^  - (\w+): (\w+) +# (.*)$", (CONFIGS / "config.yaml").read_text(), re.MULTILINE)
    rows = [f"| `{name}` | `{default}` | {_text(words)} |" for name, default, words in found]
    return "\n".join(["| group | default | what it sets |", "|---|---|---|", *rows])


def tasks() -> str:
    """Return a table of the tasks with an example of each."""
    rows = [f"| `{task.name}` | {task.help} | {_example(task)} |" for task in TASKS.values()]
    return "\n".join(["| task | what it does | example |", "|---|---|---|", *rows])


def _example(task: Task) -> str:
    """A task's example if it has settings beside the task."""
    return "" if task.example == f"task={task.name}" else f"`python run.py {task.example}`"


def arms() -> str:
    """Return the arms, with what each says of itself."""
    return choices("arm")


def conflicts() -> str:
    """Return the settings that exclude each other."""
    return "\n".join(f"- {' '.join(inspect.getdoc(rule).split())}" for rule in RULES)  # type: ignore[union-attr]


def metrics() -> str:
    """Return the metrics that every row of metrics.jsonl has. Neighbours of one unit and meaning share a row."""
    same = groupby((m for m in METRICS if m.logged and not m.of), lambda m: (m.unit, m.meaning))
    rows = [f"| {', '.join(f'`{m.name}`' for m in found)} | {unit} | {_text(words)} |" for (unit, words), found in same]
    return "\n".join(["| name | unit | meaning |", "|---|---|---|", *rows])


def panels() -> str:
    """Return the panels of a page of curves, with their metrics."""
    rows = [f"| {panel.title} | {', '.join(f'`{metric}`' for metric in panel.metrics)} |" for panel in PANELS]
    return "\n".join(["| panel | metrics |", "|---|---|", *rows, EVALUATED])


PARTS = {part.__name__: part for part in (tasks, groups, arms, settings, conflicts, metrics, panels)}


def filled(page: str) -> str:
    """Return the page with its generated parts made anew."""
    return PART.sub(lambda part: f"{part[1]}\n\n{PARTS[part[2]]()}\n\n{part[3]}", page)


if __name__ == "__main__":
    write_text(PAGE, filled(PAGE.read_text()))
