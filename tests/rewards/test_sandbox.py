"""The sandbox under attack: no solution passes a test by foul means, leaves a trace, or delays the trainer for long."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from attacks import ATTACKS, PROGRAM_ATTACKS
from forbidden import FORBIDDEN, FORBIDDEN_IN_FULL
from sandboxes import ISOLATIONS, sandbox_or_skip

from rewards.code import job, program_tests
from rewards.isolation import Limits
from rewards.sandbox import Sandbox, SandboxError, Verdict

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(cpu_s=1, wall_s=1.5, memory_mb=256, file_mb=4, output_kb=256)
MAX_DELAY_S = LIMITS.max_wall_s + 2.5  # adds the grace for a stuck judge and time for a busy machine
CHECK = """
def check(candidate):
    assert candidate(6) == 36
    assert candidate(7) == 49
"""
ENV_SECRET = "SANDBOX_TEST_SECRET"
in_full = pytest.mark.parametrize("sandbox", ["full"], indirect=True)
# What the verdict on some of the attacks says.
REASONS = {
    "endless loop": "CPU time",
    "ignore signals": "CPU time",
    "endless sleep": "wall time",
    "memory hog": "raised MemoryError: ",
    "early exit": "ended before it answered",
    "huge answer": "returned too much",
}


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One judge with each kind of isolation."""
    os.environ[ENV_SECRET] = "36 49"
    judge = sandbox_or_skip(1, LIMITS, request.param)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def full() -> Iterator[Sandbox]:
    """Two judges with namespaces."""
    judges = sandbox_or_skip(2, LIMITS)
    yield judges
    judges.close()


def function(sandbox: Sandbox, source: str, check: str = CHECK) -> Verdict:
    return sandbox.run([{"source": source, "entry": "f", "tests": check}])[0]


def program(sandbox: Sandbox, source: str, cases: list[tuple[str, str]]) -> Verdict:
    return sandbox.run([job(source, program_tests(cases))])[0]


@in_full
@pytest.mark.parametrize(
    "ending",
    ["os._exit(0)", "os.write(4, b'\\1\\0\\0\\0x')", "return 'a' * 10**6"],
    ids=["exit", "rubbish", "too much"],
)
def test_tests_that_tolerate_everything_do_not_pass_a_solution_that_ended(sandbox: Sandbox, ending: str) -> None:
    """Seen to pass (2026-11-22): a bare `except:` in the tests swallowed the failure."""
    check = """
def check(candidate):
    assert candidate(6) == 36
    try:
        candidate(7)
    except:
        pass
"""
    verdict = function(sandbox, f"import os\ndef f(x):\n  if x > 6: {ending}\n  return x * x", check)
    assert not verdict.passed, verdict
    assert function(sandbox, "def f(x):\n  if x > 6: raise ValueError\n  return x * x", check).passed


def attacked(verdict: Verdict) -> bool:
    """Whether the attack failed, and not because of a mistake in its own code."""
    mistakes = ("NameError", "SyntaxError")
    return not verdict.passed and not any(error in verdict.why for error in mistakes)


def test_right_wrong_and_empty(sandbox: Sandbox) -> None:
    assert function(sandbox, "def f(x): return x * x") == Verdict(True, "passed", 2, pytest.approx(0, abs=3))
    assert function(sandbox, "def f(x): return 36").why == "wrong answer"
    assert function(sandbox, "").why.startswith("raised NameError")
    assert function(sandbox, "def f(x: return").why.startswith("raised SyntaxError")
    assert function(sandbox, "def f(x): return str(x * x)").why == "wrong answer"
    assert function(sandbox, "def f(x): return x * x", "def check(candidate): pass").why == "the tests never called it"
    cases = [("1 2\n", "3"), ("4 5\n", "9")]
    assert program(sandbox, "a, b = map(int, input().split()); print(a + b)", cases).passed
    assert program(sandbox, "print(3)", cases).why == "wrong answer"
    assert program(sandbox, "", cases).why == "wrong answer"
    assert program(sandbox, "import sys; print(sum(map(int, sys.stdin.read().split()))); sys.exit(3)", cases).why == (
        "exit status 3"
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_fails_in_time(sandbox: Sandbox, name: str) -> None:
    began = time.monotonic()
    verdict = function(sandbox, ATTACKS[name])
    assert attacked(verdict), verdict
    assert verdict.why == REASONS.get(name, verdict.why)
    assert time.monotonic() - began < MAX_DELAY_S
    assert function(sandbox, "def f(x): return x * x").passed  # the next solution is judged as usual


def doing(statements: str, folder: Path) -> str:
    """A solution that passes if it may do what the statements say."""
    done = statements.format(pid=os.getpid(), secret=ENV_SECRET, folder=folder, project=ROOT / "README.md")
    return f"def f(x):\n    {done}\n    return x * x"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may write to, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
        Path(name).chmod(0o777)
        kept = Path(name) / "kept"
        kept.write_text("kept")
        kept.chmod(0o666)
        yield Path(name)


@pytest.mark.parametrize("statements", FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_forbidden(sandbox: Sandbox, statements: str, folder: Path) -> None:
    assert attacked(function(sandbox, doing(statements, folder)))
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").read_text() == "kept"
    assert function(sandbox, "def f(x): return x * x").passed


@in_full
@pytest.mark.parametrize("statements", FORBIDDEN_IN_FULL.values(), ids=list(FORBIDDEN_IN_FULL))
def test_forbidden_in_full(sandbox: Sandbox, statements: str) -> None:
    assert attacked(function(sandbox, doing(statements, ROOT)))


def test_programs_under_attack(sandbox: Sandbox) -> None:
    cases = [("6\n", "36")]
    began = time.monotonic()
    flood = "import os\nwhile True: os.write(1, b'x' * (1 << 20))"
    assert program(sandbox, flood, cases).why == "wrote too much"
    assert program(sandbox, "import os\nos._exit(0)", cases).why == "wrong answer"
    assert time.monotonic() - began < MAX_DELAY_S
    assert program(sandbox, "while True: pass", cases).why == "CPU time"
    late = "import os, time\nprint(36, flush=True)\nos.close(1)\ntime.sleep(99)"
    assert program(sandbox, late, cases).why == "wall time"
    assert program(sandbox, "import os\nprint(36)\nos.fork()", cases).why == "exit status 1"


@pytest.mark.parametrize(("source", "cases"), PROGRAM_ATTACKS.values(), ids=list(PROGRAM_ATTACKS))
def test_program_attack_fails(sandbox: Sandbox, source: str, cases: list[tuple[str, str]]) -> None:
    verdict = program(sandbox, source, cases)
    assert attacked(verdict), verdict
    assert function(sandbox, "def f(x): return x * x").passed


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_wall_time_ends_a_sleeper_and_cpu_time_ends_a_computation(isolation: str) -> None:
    """A solution that computes still gets its CPU time after its wall time, as it must on a busy machine."""
    hurried = sandbox_or_skip(1, Limits(cpu_s=1, wall_s=0.4), isolation)
    busy = "import time\nwhile time.process_time() - began < {}: pass\n"
    source = "import time\nbegan = time.process_time()\ndef f(x):\n    {}    return x * x"
    computes = source.format("while time.process_time() - began < x / 12: pass\n")  # 0.58 s for both calls
    assert function(hurried, computes).why == "passed"
    hurried.take_counts()
    assert function(hurried, "import time\ndef f(x): time.sleep(99)").why == "wall time"
    assert hurried.take_counts()["judge_timeouts"] == 1
    part = f"import time\nbegan = time.process_time()\n{busy.format(0.3)}print(36)"
    assert program(hurried, part, [("", "36")] * 2).why == "passed"
    assert program(hurried, part, [("", "36")] * 5).why == "CPU time"  # the limit holds for all tests together
    hurried.close()


def test_an_answer_that_is_slow_to_compare_ends_only_its_judge() -> None:
    """The judge is busy in C code, which no exception can interrupt."""
    hurried = Sandbox(1, Limits(cpu_s=1), "weak")
    hurried.take_counts()
    slow = "def check(candidate): assert sum(range(candidate(6))) == 36"
    assert function(hurried, "def f(x): return 10 ** 11", slow).why == "its judge hung or died"
    assert hurried.take_counts() == {"judge_deaths": 1, "judge_failures": 1, "judge_timeouts": 0}
    assert function(hurried, "def f(x): return x").why == "wrong answer"
    hurried.close()


FORGED_ANSWERS = {
    "a set of equal hashes": """'{"t": "set", "v": [' + ','.join(str(i * P) for i in range(140000)) + ']}'""",
    "a dict of equal hashes": """'{"t": "dict", "v": [' + ','.join(f'[{i * P}, 1]' for i in range(140000)) + ']}'""",
    "empty lists": "'[' + '[],' * 1390000 + '1]'",
    "a linked list": """'{"t": "list_node", "v": [' + '1,' * 2090000 + '1]}'""",
    "a tree": """'{"t": "tree_node", "v": [' + '1,' * 2090000 + '1]}'""",
}


@pytest.fixture(scope="module")
def patient() -> Iterator[Sandbox]:
    """One judge with the default limits."""
    judge = Sandbox(1, Limits(), "weak")
    yield judge
    judge.close()


@pytest.mark.parametrize("answer", FORGED_ANSWERS.values(), ids=list(FORGED_ANSWERS))
def test_a_forged_answer_costs_its_judge_little(patient: Sandbox, answer: str) -> None:
    """An answer of 4 MB must not take its judge's life, nor a hundred times as much memory."""
    (worker,) = patient._workers._all
    reply = f"""
import os, struct
P = (1 << 61) - 1  # Python's hash of every multiple of it is 0
def f(x):
    reply = ('["value", ' + {answer} + ']').encode()
    reply = struct.pack('<I', len(reply)) + reply
    while reply: reply = reply[os.write(4, reply):]
"""
    assert attacked(function(patient, reply))
    peak = next(line for line in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 200 << 10  # KiB
    assert worker in patient._workers._all


def test_python_without_assertions_judges_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONOPTIMIZE removes assert statements; those of the tests must stay."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    judge = Sandbox(1, Limits(), "weak")
    assert function(judge, "def f(x): return x * x").passed
    assert not function(judge, "def f(x): return x").passed
    judge.close()


@in_full
def test_nothing_leaks_from_one_solution_to_the_next(sandbox: Sandbox) -> None:
    """All share a fork server."""
    leave = """
import builtins, collections, os, random, sys
def f(x):
    builtins.left = collections.left = sys.left = 1
    os.environ['LEFT'] = '1'
    random.seed(x)
    open('/tmp/left', 'w').write('1')
    sys.setrecursionlimit(50)
    os.umask(0)
    return x * x
"""
    look = """
import builtins, collections, gc, os, random, sys
def f(x):
    left = [hasattr(m, 'left') for m in (builtins, collections, sys)] + ['LEFT' in os.environ]
    left += ['left' in os.listdir('/tmp')]
    left += [any('def f(x)' in o and 'open(' in o for o in gc.get_objects() if type(o) is str)]
    return -1 if any(left) else random.random()
"""
    values = "def check(candidate): assert candidate(1) == 0.8444218515250481"  # random.seed(0), random.random()
    verdicts = [function(sandbox, look, values)]
    assert function(sandbox, leave).passed
    verdicts.append(function(sandbox, look, values))
    assert [verdict.passed for verdict in verdicts] == [True, True]  # both saw fresh state and the same random numbers


@in_full
@pytest.mark.parametrize(
    ("leave", "state"),
    [
        ("fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)", "fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND"),
        ("fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR | os.O_NONBLOCK)", "fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK"),
        ("os.utime(0)", "os.fstat(0).st_mtime"),
        ("os.utime(1)", "os.fstat(2).st_atime"),
    ],
)
def test_nothing_leaks_through_a_shared_descriptor(sandbox: Sandbox, leave: str, state: str) -> None:
    """All children of a fork server share its open /dev/null."""
    look = f"import fcntl, os\ndef f(x): raise KeyError({state})"
    before = function(sandbox, look)
    assert before.why.startswith("raised KeyError")
    function(sandbox, f"import fcntl, os\ndef f(x): {leave}")
    assert function(sandbox, look).why == before.why


def test_a_judge_that_hangs_or_dies_is_replaced(full: Sandbox) -> None:
    """Tests that never end are an error in the data. The trainer must survive them too."""
    began = time.monotonic()
    endless = "def check(candidate):\n    while True: pass"
    suicidal = "import os\ndef check(candidate): os._exit(0)"
    verdicts = full.run(
        [{"source": "def f(x): return x * x", "entry": "f", "tests": tests} for tests in (endless, suicidal, CHECK)]
    )
    assert [verdict.passed for verdict in verdicts] == [False, False, True]
    assert time.monotonic() - began < 2 * MAX_DELAY_S


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_solution_dies_with_its_judge(isolation: str) -> None:
    sandbox = sandbox_or_skip(1, replace(LIMITS, wall_s=60.0), isolation)  # a busy machine must not end it first
    (judge,) = (psutil.Process(worker.process.pid) for worker in sandbox._workers._all)
    before = judge.children(recursive=True)
    busy = "import time\ndef f(x):\n    while True: time.sleep(1)"
    dying = """
import os, threading
def check(candidate):
    threading.Timer(1.0, os._exit, [0]).start()
    candidate(1)
"""
    with ThreadPoolExecutor(1) as aside:
        verdict = aside.submit(function, sandbox, busy, dying)
        started = before
        while len(started) == len(before) and not verdict.done():  # until the child has started
            started = judge.children(recursive=True)
        assert verdict.result().why == "its judge hung or died"
    sandbox.close()
    assert len(started) > len(before)
    assert not psutil.wait_procs(started, timeout=10)[1]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_process_outlives_the_trainer(isolation: str) -> None:
    """A trainer killed during an endless solution takes its judges, fork servers and children with it."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from rewards.sandbox import Sandbox
from rewards.isolation import Limits
sandbox = Sandbox(2, Limits(cpu_s=1, wall_s=2.0), sys.argv[1])
print("up", flush=True)
sandbox.run([{{"source": "import time\\ndef f(x): time.sleep(1000)", "entry": "f", "tests": "def check(c): c(1)"}}] * 2)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script, isolation], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    if trainer.stdout.readline() != "up\n":
        pytest.skip(f"this machine lacks what isolation={isolation} needs")
    time.sleep(0.5)
    descendants = psutil.Process(trainer.pid).children(recursive=True)
    assert len(descendants) >= 6  # two judges, two fork servers, two children
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert not psutil.wait_procs(descendants, timeout=10)[1]


def test_many_at_once_keep_their_order(full: Sandbox) -> None:
    sources = [f"def f(x): return x * x + {i % 3}" for i in range(24)]
    verdicts = full.run([{"source": source, "entry": "f", "tests": CHECK} for source in sources])
    assert [verdict.passed for verdict in verdicts] == [i % 3 == 0 for i in range(24)]


def test_no_isolation_by_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    """Weak isolation prints a warning, and none at all is an error."""
    with pytest.raises(SandboxError, match="choose full or weak"):
        Sandbox(1, LIMITS, "none")
    with pytest.raises(SandboxError, match="a process could not be confined"):
        Sandbox(1, Limits(open_files=1 << 40), "weak")
    assert "isolation=weak: no namespaces" in capfd.readouterr().err
