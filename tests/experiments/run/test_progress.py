"""Progress lines: plain where the output is no terminal, with a bar where it is one."""

import io
import re
import sys
import threading
from pathlib import Path

import pytest

from das.general.side_output import stage
from experiments.run import progress as of_run
from experiments.run.errors import stop
from experiments.run.progress import Progress

ROW = {"arm": "das", "rollout_s": 1.5, "tokens_per_pass": 2.0, "length_max": 70, "reward": 0.25}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(terminal: io.StringIO) -> str:
    progress = Progress(2, terminal=terminal)
    progress.note("[bold]starting")
    progress.start()
    progress.step({**ROW, "step": 1})
    progress.step({**ROW, "step": 2, "reward": None, "alarms": ["no token accepted"]})
    progress.note("result: here")
    return terminal.getvalue()


def test_lines_are_plain_where_there_is_no_terminal() -> None:
    lines = report(io.StringIO()).splitlines()
    assert lines[0] == "[bold]starting"
    assert lines[1].startswith("step   1/2  das           reward 0.250  rollout   1.50 s  tokens/pass  2.00")
    assert lines[2].startswith("step   2/2  das           reward none   rollout   1.50 s")  # the function abstained
    assert lines[3] == "ALARM  step 2, das: no token accepted"
    assert lines[4] == "result: here"


def test_a_terminal_gets_a_bar_and_its_cursor_back() -> None:
    text = report(Terminal())
    assert "1/2" in text
    assert "\x1b[?25h" in text


def test_a_verdict_stands_in_place_of_the_lines_of_the_arms() -> None:
    terminal = io.StringIO()
    progress = Progress(2, 2, terminal, lambda row: "all is well" if row["arm"] == "das" else None)
    for arm in ("none", "das"):
        progress.step({**ROW, "arm": arm, "step": 1})
    (line,) = terminal.getvalue().splitlines()
    assert line.startswith("step   1/2 · all is well · ETA 0:0")


def test_a_long_start_says_what_it_does_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process das.general.side_output says it; of arms in processes of their own the parent passes it on."""
    said = threading.Semaphore(0)

    class Heard(io.StringIO):
        def write(self, text: str) -> int:
            if "so far" in text:
                said.release()
            return super().write(text)

    monkeypatch.setattr(of_run, "SAY_S", 0.01)
    terminal = Heard()
    progress = Progress(2, terminal=terminal)
    with progress.starting("das", Path("log.txt")):
        assert said.acquire(timeout=60)
        for say in (lambda: stage("makes its engine"), lambda: progress.now("none loads the policy")):
            say()
            for _ in range(2):  # one of the lines may have begun before
                assert said.acquire(timeout=60)
        progress.step({**ROW, "step": 1})
    stage("trains")
    lines = terminal.getvalue().splitlines()
    assert re.fullmatch(r"starting, \d+ s so far: das loads vLLM and TRL \(log: log\.txt\)", lines[0])
    for now in ("das makes its engine", "none loads the policy"):
        assert any(f"s so far: {now} (log" in line for line in lines)
    assert "trains" not in terminal.getvalue()
    assert any(line.startswith("step   1/2") for line in lines)
    assert len([thread for thread in threading.enumerate() if thread.name == "start"]) == 0


def test_control_characters_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stop("data.path=\x1b[2J\x1b[31mfake\x07 \u202ex\x9b\ud800: größer", 2)
    Progress(0, terminal=sys.stdout).note("first\nmeta.json says \x1b]0;title\x07 └")
    printed = capfd.readouterr()
    assert printed.err == "error: data.path=\\x1b[2J\\x1b[31mfake\\x07 \\u202ex\\x9b\\ud800: größer\n"
    assert printed.out == "first\nmeta.json says \\x1b]0;title\\x07 └\n"
