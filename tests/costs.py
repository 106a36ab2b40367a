"""What tests cost: where their seconds went, by what they protect; and what fast tests start.

A new interpreter that imports vLLM and TRL costs 12 s of a processor, an engine 2. As a plugin of pytest this fails a
session whose fast tests start more than is stated here, and names who starts most. Forks of the warm process
(experiments/run/processes.py) cost nothing and are not counted.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

MOST_ENGINES, MOST_INTERPRETERS = 20, 24  # of all tests that are not marked slow
# What a user could lose, and the tests that guard it: of a test's path the first beginning counts.
PROTECTS = {
    "training: the same rewards, losses, weights": ("trl/", "cluster/"),
    "tokens: the same with and without drafts": ("identity/", "verify/", "engine/", "models/", "weights/"),
    "speed: drafts that fit, budgets that pay": ("drafter/", "budget/", "test_draft_round", "experiments/simulate/"),
    "rewards: right answers count, others not": ("rewards/", "experiments/problem_sets/"),
    "runs: settings, folders, one-line errors": ("experiments/arm/", "experiments/compare/", "experiments/run/"),
    "papers: tasks, policies, heads, replays": ("experiments/",),
    "figures and tables that say what runs did": ("analysis/",),
    "at night: searches, kills, other versions": ("nightly/",),
    "the first hour: docs, examples, install": ("",),
}


class Costs:
    """Counts engines and interpreters by file. With xdist each worker counts its own, and the first process sums up."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.engines: Counter[str] = Counter()
        self.interpreters: Counter[str] = Counter()
        self.file: str | None = None  # of the running test, if it is fast
        self.seconds: Counter[str] = Counter()  # by what is protected
        self.tests: Counter[str] = Counter()
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self.file:
            words = [*map(str, arguments[1])]
            # Workers of rewards import neither vLLM nor TRL.
            self.interpreters[self.file] += sys.executable in words and not any(
                "from rewards." in word for word in words
            )

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.file = None if item.get_closest_marker("slow") else item.nodeid.split("::")[0]
        engine = getattr(sys.modules.get("vllm.v1.engine.llm_engine"), "LLMEngine", None)
        if engine is not None and not hasattr(engine.__init__, "__wrapped__"):
            engine.__init__ = self._counted(engine.__init__)
        yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = report.nodeid.removeprefix("tests/")
        protects = next(name for name, starts in PROTECTS.items() if path.startswith(starts))
        self.seconds[protects] += report.duration
        self.tests[protects] += report.when == "call"

    def _counted(self, build: Any) -> Any:
        @functools.wraps(build)
        def counted(*args: Any, **kwargs: Any) -> None:
            if self.file:
                self.engines[self.file] += 1
            build(*args, **kwargs)

        return counted

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["starts"] = dict(self.engines), dict(self.interpreters)
        elif self.too_many() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        engines, interpreters = getattr(node, "workeroutput", {}).get("starts", ({}, {}))
        self.engines.update(engines)
        self.interpreters.update(interpreters)

    def too_many(self) -> bool:
        """Whether fast tests start more than they may."""
        return self.engines.total() > MOST_ENGINES or self.interpreters.total() > MOST_INTERPRETERS

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.seconds:
            terminalreporter.write_line("seconds of all processes, by what the tests protect:")
        for name, seconds in self.seconds.most_common():
            terminalreporter.write_line(f"{seconds:7.1f} s {self.tests[name]:5d} tests  {name}")
        for what, counts, most in (
            ("engines", self.engines, MOST_ENGINES),
            ("interpreters", self.interpreters, MOST_INTERPRETERS),
        ):
            where = ", ".join(f"{file} {count}" for file, count in counts.most_common(8))
            terminalreporter.write_line(f"fast tests started {counts.total()} {what} (at most {most}): {where}")
        if self.too_many():
            terminalreporter.write_line(
                "FAILED: use an engine that another test has, a warm process, or mark them slow"
            )
