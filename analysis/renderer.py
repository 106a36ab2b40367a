"""Make a section of the report from its declaration, the key `figure` of a file of configs/experiment.

A declaration holds texts and expressions. An expression is Python. It sees the experiment's runs (analysis/record.py)
by their labels, `run` (the first one), `runs` (label -> run), `published` (all published numbers), `paper` (those that
the key `paper` names), the words of analysis/quantities.py, those of the modules of analysis that `uses` lists, and
`values`. A text has expressions in braces, as an f-string has; a text that begins with "=" is one expression.

    uses:      modules of analysis with words that only this figure needs
    paper:     key of published.json
    values:    name -> expression, which may use the names before it; a number stands for itself
    setting, differs: texts
    lines:     {what, plotted, claimed, replay, engine}: texts
    tables:    {header: texts, rows: {cells: texts}}
    orderings: {claim, evidence, unit}: texts, {met, paper, ours}: expressions
    pictures:  {file: text, colors: expression for the names that get colours, panels}
    panels:    {marks, legend: true or the arguments of Axes.legend; all others: arguments of Axes.set}
    marks:     {draw: a method of Axes, plot by default; rows: expression; x, y: expressions; form: as in Axes.plot;
               label, color: texts; colorbar: its text; all others: arguments of the method}

Of `rows`, x (by default `step`) and y are expressions over each row. An item of a list may say `each: NAMES in
EXPRESSION [if CONDITION]`, and is repeated. In place of an item, a text is an expression that gives items.
"""

import importlib
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import quantities, read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.record import Record
from analysis.report import Line, Section, Table

LINE = ("what", "plotted", "claimed", "replay", "engine")
OF_MARKS = ("each", "draw", "rows", "x", "y", "form", "color", "colorbar")  # keys that are no arguments of the method
OF_PANELS = ("each", "marks", "legend")


# What a word raises for a run, an arm, a column or a file that is not there, or is damaged.
OF_INPUT = (LookupError, OSError, ValueError)


class BadFigure(ValueError):
    """Raised for a declaration that cannot be rendered. The one-line message names its text or expression."""


def section(
    title: str,
    declaration: Mapping[str, Any] | str,
    runs: Mapping[str, Path],
    published: Mapping[str, Any],
    folder: Path,
) -> Section:
    """Make the section that `declaration` states, and draw its pictures into `folder`.

    declaration: a text is the name of a file of this folder that holds it, for figures that are alike. runs: label ->
    folder of a run. published: the content of published.json. Raises BadFigure.
    """
    if isinstance(declaration, str):
        declaration = read.settings(Path(__file__).with_name(f"{declaration}.yaml"))
    records = {label: Record(path) for label, path in runs.items()}
    scope = _Scope({"published": published, "runs": records, "run": next(iter(records.values())), **records})
    for module in (quantities, *(importlib.import_module(f"analysis.{name}") for name in declaration.get("uses", []))):
        scope.names |= {name: getattr(module, name) for name in module.__all__}
    if "paper" in declaration:
        scope.names["paper"] = published[declaration["paper"]]["data"]
    for name, value in declaration.get("values", {}).items():
        scope.names[name] = scope.value(value)
    tables = [made if isinstance(made, Table) else at.table(made) for at, made in scope.items(declaration, "tables")]
    return Section(
        title,
        scope.text(declaration.get("setting", "")),
        [made if isinstance(made, Line) else at.line(made) for at, made in scope.items(declaration, "lines")],
        scope.text(declaration.get("differs", "")),
        [at.picture(made, folder) for at, made in scope.items(declaration, "pictures")],
        tables[0] if tables else None,
        [
            made if isinstance(made, Ordering) else at.ordering(made)
            for at, made in scope.items(declaration, "orderings")
        ],
        tables[1:],
    )


@dataclass
class _Scope:
    """The names that texts and expressions see."""

    names: dict[str, Any]

    def value(self, expression: Any, row: Mapping[str, Any] | None = None, text: str = "") -> Any:
        """Return the value of an expression; anything but a text stands for itself.

        row: further names. text: what an error names in place of the expression. Raises BadFigure. What a word raises
        by a mistake of its own stays as it is, with a note that names the expression.
        """
        if not isinstance(expression, str):
            return expression
        try:
            return eval(expression, {**self.names, **(row or {})})
        except Exception as error:
            in_expression = traceback.extract_tb(error.__traceback__)[-1].filename == "<string>"
            if not in_expression and not isinstance(error, (SyntaxError, *OF_INPUT)):
                error.add_note(f"in the expression {text or expression}")
                raise
            raise BadFigure(f"{text or expression}: {type(error).__name__}: {error}") from error

    def text(self, text: Any) -> Any:
        """Return a text with the values of its expressions; anything but a text stands for itself."""
        if not isinstance(text, str):
            return text
        if text.startswith("="):
            return self.value(text[1:])
        return self.value(f'f"""{text}"""', text=text) if "{" in text else text

    def texts(self, texts: Iterable[str]) -> list[str]:
        """Return the cells of a table's row. An expression may give several."""
        found: list[str] = []
        for text in map(self.text, texts):
            found += [text] if isinstance(text, str) else text
        return found

    def items(self, body: Mapping[str, Any], key: str) -> Iterator[tuple["_Scope", Any]]:
        """Yield the items of a list, each with the names that it sees."""
        listed = body.get(key, [])
        for item in [listed] if isinstance(listed, str) else listed:
            if isinstance(item, str):
                yield from ((self, made) for made in self.value(item))
            elif isinstance(item, Mapping) and "each" in item:
                bound = ", ".join(f"{name}={name}" for name in re.findall(r"\w+", item["each"].partition(" in ")[0]))
                for names in self.value(f"[dict({bound}) for {item['each']}]"):
                    yield _Scope({**self.names, **names}), item
            else:
                yield self, item

    def line(self, body: Mapping[str, Any]) -> Line:
        return Line(*(self.text(body.get(key, "")) for key in LINE))

    def table(self, body: Mapping[str, Any]) -> Table:
        rows = [made if isinstance(made, list) else at.texts(made["cells"]) for at, made in self.items(body, "rows")]
        return Table(self.texts(body["header"]), rows)

    def ordering(self, body: Mapping[str, Any]) -> Ordering:
        met, paper, ours = (self.value(body.get(key)) for key in ("met", "paper", "ours"))
        return Ordering(
            self.text(body["claim"]),
            None if met is None else bool(met),
            self.text(body.get("evidence", "")),
            paper,
            ours,
            body.get("unit", ""),
        )

    def picture(self, body: Mapping[str, Any], folder: Path) -> str:
        """Draw a picture. Returns the file's name."""
        colors = colours_of(self.value(body.get("colors", [])))
        panels = list(self.items(body, "panels"))
        name = str(self.text(body["file"]))
        with figure(folder / name, len(panels)) as drawn:
            for axes, (scope, panel) in zip(np.ravel(drawn), panels, strict=True):
                for at, mark in scope.items(panel, "marks"):
                    at.mark(axes, mark, colors)
                axes.set(**{key: scope.text(value) for key, value in panel.items() if key not in OF_PANELS})
                if legend := panel.get("legend"):
                    axes.legend(**(legend if isinstance(legend, Mapping) else {}))
        return name

    def mark(self, axes: Any, body: Mapping[str, Any], colors: Mapping[str, str]) -> None:
        """Draw one mark. colors: name -> its colour; other colours are matplotlib's."""
        options = {key: self.text(value) for key, value in body.items() if key not in OF_MARKS}
        if "color" in body:
            color = self.text(body["color"])
            options["color"] = colors.get(color, color) if isinstance(color, str) else [colors[each] for each in color]
        if "rows" in body:
            rows = self.value(body["rows"])
            places = [
                [self.value(expression, row) for row in rows] for expression in (body.get("x", "step"), body["y"])
            ]
        else:
            places = [self.value(body[key]) for key in ("x", "y") if key in body]
        form = [self.text(body["form"])] if "form" in body else []
        drawn = getattr(axes, body.get("draw", "plot"))(*places, *form, **options)
        if "colorbar" in body:
            axes.figure.colorbar(drawn, label=self.text(body["colorbar"]))
