"""The list of tasks that `python run.py --help` prints."""

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
        "\nconfigs/ lists every KEY with its unit or source. docs/reference.md has examples.\n"
        "`python run.py task=NAME --cfg job` prints a task's config; `python run.py --hydra-help` prints Hydra's flags."
    )
    return text.getvalue().rstrip()
