"""Print the list of tasks for `python run.py --help` and for the page docs/commands.md.

`python -m experiments.commands > docs/commands.md` writes the page again. A test fails if the page is out of date.
"""

import io

from rich.console import Console
from rich.table import Table

from experiments.registry import TASKS

WIDTH = 120  # columns of the help if the output is no terminal


def usage() -> str:
    """Return the text that `python run.py --help` prints."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task")
    table.add_column("what it does")
    for task in TASKS.values():
        table.add_row(task.name, task.help)
    text = io.StringIO()
    width = Console().width if Console().is_terminal else WIDTH
    terminal = Console(file=text, width=width, highlight=False, markup=False)
    terminal.print("usage: python run.py [task=NAME] [KEY=VALUE ...]    (task=compare if none is named)\n")
    terminal.print(table)
    terminal.print(
        "\nconfigs/ lists every KEY with its unit or source. docs/commands.md has an example of each task.\n"
        "`python run.py task=NAME --cfg job` prints a task's config; `python run.py --hydra-help` prints Hydra's flags."
    )
    return text.getvalue().rstrip()


def markdown() -> str:
    """Return the text of docs/commands.md, which lists the tasks with their examples."""
    rows = [f"| `{task.name}` | {task.help} | `python run.py {task.example}` |" for task in TASKS.values()]
    return "\n".join(
        [
            "# Commands",
            "",
            "The heads of `configs/task/*.yaml` make this page: `python -m experiments.commands > docs/commands.md`.",
            "",
            "Every command is `python run.py` with settings behind it. `python` is `.venv/bin/python`, which",
            "`make run` sets up. `python run.py --help` prints this list. `configs/` lists every setting with its unit",
            "or source.",
            "",
            "| task | what it does | example |",
            "|---|---|---|",
            *rows,
        ]
    )


if __name__ == "__main__":
    print(markdown())
