"""DAS Fig 5: compare two structures, an index that can grow and a suffix array that is sorted anew for every
insertion."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Section, Table

HEADER = ("tokens", "index, query", "array, query", "index, insert 100", "array, insert 100")
# Columns after the first: the paper's operation and structure, and the key of our measurement in milliseconds.
COLUMNS = (
    ("speculate", "suffix_tree", "query_ms"),
    ("speculate", "suffix_array", "array_query_ms"),
    ("insert_100_tokens", "suffix_tree", "insert_100_ms"),
    ("insert_100_tokens", "suffix_array", "array_sort_ms"),
)


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare the times of a query and of an insertion of 100 tokens, by the number of indexed tokens."""
    (run,) = runs.values()
    measured = read.result(run)["array"]
    paper = published["das_fig5"]["data"]
    _draw(measured, paper, folder / "tree_and_array.png")
    speedups = [row["array_query_ms"] / row["query_ms"] for row in measured]
    slowest_insertion = max(row["insert_100_ms"] for row in measured)
    return Section(
        title,
        "Milliseconds, paper · ours. The paper's index is a suffix tree; ours is an index of hashed contexts, in C. "
        "The array is searched by bisection and sorted anew for every insertion, in numpy. The languages differ, so "
        "compare orders of magnitude only.",
        table=Table(HEADER, [_cells(row, paper) for row in measured]),
        figures=["tree_and_array.png"],
        orderings=[
            Ordering(
                "the growing index answers faster than the array at every size",
                min(speedups) > 1,
                f"{min(speedups):.1f} to {max(speedups):.0f} times faster",
                paper["derived_speculate_ratio_range"][0],
                min(speedups),
                " times as fast, at least",
            ),
            Ordering(
                "inserting 100 tokens takes less than a millisecond at every size",
                slowest_insertion < 1,
                f"at most {slowest_insertion:.3f} ms",
                max(paper["insert_100_tokens"]["suffix_tree"]),
                slowest_insertion,
                " ms at most",
            ),
        ],
    )


def _draw(measured: Sequence[Mapping[str, float]], paper: Mapping[str, Any], path: Path) -> None:
    """Draw, left: the time of a query. Right: the time of an insertion. Dotted: the paper's times."""
    sizes = [row["tokens"] for row in measured]
    colour = colours_of(["index", "array"])
    labels = {"suffix_tree": "index", "suffix_array": "array"}
    titles = {"speculate": "draft query", "insert_100_tokens": "insertion of 100 tokens"}
    with figure(path, panels=2) as panels:
        for axes, (operation, title) in zip(panels, titles.items(), strict=True):
            for structure, key in [(structure, key) for of, structure, key in COLUMNS if of == operation]:
                name = labels[structure]
                axes.plot(sizes, [row[key] for row in measured], ".-", color=colour[name], label=name)
                plotted = paper[operation][structure]
                axes.plot(paper["corpus_tokens"], plotted, ":", color=colour[name], label=f"{name} (paper)")
            axes.set(xlabel="tokens indexed", ylabel="ms", xscale="log", yscale="log", title=f"Fig 5: {title}")
            axes.legend()


def _cells(row: Mapping[str, float], paper: Mapping[str, Any]) -> list[str]:
    """Return a line of the table: our milliseconds, after the paper's if the paper has a value for this size."""
    cells = [f"{row['tokens']:,}"]
    for operation, structure, key in COLUMNS:
        ours = f"{row[key]:.3g}"
        if row["tokens"] in paper["corpus_tokens"]:
            plotted = paper[operation][structure][paper["corpus_tokens"].index(row["tokens"])]
            ours = f"{plotted:g} · {ours}"
        cells.append(ours)
    return cells
