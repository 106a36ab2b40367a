"""A figure's declaration becomes a section: computed numbers in texts, the paper's beside ours, verdicts, pictures."""

from pathlib import Path
from typing import Any

import pytest
from steps_on_disk import write_arm

from analysis.orderings import NO_SIZE, NOT_MET, UNDECIDED
from analysis.renderer import BadFigure, section
from analysis.report import Section

PUBLISHED = {"fig": {"data": {"seconds": [4, 2]}}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three steps of two arms; `fast` takes half the seconds and emits twice the tokens per pass."""
    for arm, factor in (("slow", 1), ("fast", 2)):
        rows = [{"step": n, "seconds": n / factor, "tokens": 10 * factor, "passes": 10} for n in (1, 2, 3)]
        write_arm(tmp_path / "arms" / arm, rows)
    return tmp_path


def made(run: Path, **declaration: Any) -> Section:
    return section("Title", declaration, {"a": run}, PUBLISHED, run)


def test_texts_and_lines_have_computed_numbers(run: Path) -> None:
    made_section = made(
        run,
        paper="fig",
        values={"ours": "total(a['slow'], 'seconds') / total(a['fast'], 'seconds')", "target": 3},
        setting="{len(a['slow'])} steps, target {target}",
        lines=[{"what": "times as fast", "plotted": "{paper['seconds'][0] / 2:.1f}", "engine": "{ours:.2f}"}],
        tables=[
            {"header": ["arm", "=list('xy')"], "rows": [{"each": "arm in 'ab'", "cells": ["{arm}", "=['1', '2']"]}]}
        ],
    )  # fmt: skip
    assert (made_section.title, made_section.setting) == ("Title", "3 steps, target 3")
    lines, table = made_section.tables()
    assert lines.header == ["", "paper (plotted)", "ours (real engine, small policy)"]
    assert lines.rows == [["times as fast", "2.0", "2.00"]]
    assert table.header == ["arm", "x", "y"]
    assert table.rows == [["a", "1", "2"], ["b", "1", "2"]]


def test_every_claim_has_its_verdict_beside_the_papers_number(run: Path) -> None:
    claims = made(
        run,
        paper="fig",
        orderings=[
            {"each": "arm, other in (('fast', 'slow'), ('slow', 'fast'))", "claim": "{arm} is faster",
             "met": "total(a[arm], 'seconds') < total(a[other], 'seconds')",
             "evidence": "{total(a[arm], 'seconds'):g} s"},
            {"claim": "by half", "met": "True", "paper": "paper['seconds'][0]", "ours": 4.4, "unit": " s"},
            {"claim": "too short to tell", "met": "None"},
        ],
    ).orderings  # fmt: skip
    assert [claim.verdict for claim in claims] == [NO_SIZE, NOT_MET, "order and size met", UNDECIDED]
    assert [claim.evidence for claim in claims[:2]] == ["3 s", "6 s"]
    assert claims[2].cells[1:4] == ["4 s", "4.4 s", "1.10"]


def test_a_picture_draws_expressions_over_the_rows_of_each_arm(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    picture = {
        "file": "{'a'}.png",
        "colors": "['none', 'fast']",
        "panels": [
            {"title": "{1 + 1} arms", "legend": True, "marks": [
                {"each": "arm in ('slow', 'fast')", "rows": "a[arm]", "y": "tokens / passes", "label": "{arm}"},
            ]},
            {"ylim": "=(0, 9)", "marks": [{"draw": "bar", "x": "['p']", "y": "[5]", "color": "red"}]},
        ],
    }  # fmt: skip
    made(run, pictures=[picture])
    left, right = saved[0].axes
    assert left.get_title() == "2 arms"
    assert {line.get_label(): list(line.get_xydata()[:, 1]) for line in left.lines} == {
        "slow": [1] * 3,
        "fast": [2] * 3,
    }
    assert list(left.lines[0].get_xdata()) == [1, 2, 3], "the steps"
    assert right.get_ylim() == (0, 9)
    assert right.patches[0].get_height() == 5


@pytest.mark.parametrize(
    ("declaration", "line"),
    [
        ({"setting": "{unknown:.2f}"}, "^{unknown:.2f}: NameError: name 'unknown' is not defined"),
        ({"values": {"x": "a['gone']"}}, r"a\['gone'\].*FileNotFoundError"),
        ({"values": {"x": "total(a['slow'], 'rounds')"}}, r"^total\(a\['slow'\], 'rounds'\): KeyError: 'rounds'"),
        ({"values": {"x": "total(a['slow'])"}}, "TypeError: total.* missing 1 required positional argument"),
        ({"orderings": [{"claim": "c", "met": "1 <"}]}, "^1 <: SyntaxError"),
        (
            {"setting": "{over(a['slow'], 'tokens / rounds')}"},
            r"^\{over\(a\['slow'\], 'tokens / rounds'\)\}: NameError: name 'rounds'",
        ),
    ],
)
def test_what_cannot_be_computed_is_one_line_that_names_it(run: Path, declaration: dict[str, Any], line: str) -> None:
    with pytest.raises(BadFigure, match=line) as raised:
        made(run, **declaration)
    assert "\n" not in str(raised.value)


def test_an_error_of_a_word_keeps_its_traceback(run: Path) -> None:
    with pytest.raises(TypeError) as raised:
        made(run, setting="{total(3, 'seconds')}")
    assert raised.traceback[-1].name == "total"
    assert raised.value.__notes__ == ["in the expression {total(3, 'seconds')}"]
