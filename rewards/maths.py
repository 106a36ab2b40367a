"""Reward for maths: 1.0 if math-verify finds the boxed answer equal to the gold answer, else 0.0.

math-verify can compute for ever and fill the memory. Its own time limit is a signal, which cannot interrupt a long
computation in C code. So `MathsReward` uses worker processes, which have a memory limit and can be killed.
`accuracy_reward` computes the same reward in this process, for policies that never write such answers. Only the main
thread gets signals, so a call from another thread is answered by a worker process.

All limits count CPU time, so a busy or paused machine changes no reward. A failure of math-verify itself is an error,
not a wrong answer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from types import FrameType
from typing import Any, TypeVar

from rewards import numbers
from rewards.answers import boxes, without_open_thought
from rewards.limits import address_space, limit_memory
from rewards.notation import may_be_equal, plain
from rewards.process import die_with_parent
from rewards.reward import RewardError
from rewards.workers import FAILED, RETIRES, JudgeError, Workers, command

T = TypeVar("T")

# CPU seconds for each call of math-verify: parse the gold answer, parse the response, compare two expressions. Parsing
# an ordinary answer takes about a millisecond.
_TIMEOUT_S = 2
_NEVER_S = 3600  # disables math-verify's own limit, which counts time by the clock
_PATIENCE = 10  # seconds by the clock that a worker may take for each second of its CPU time
_MEMORY_BYTES = 2 << 30  # address space of a worker; an idle worker uses 0.06 GiB
# sympy caches what it computes. A worker that has grown by this many bytes is replaced, so that no response takes the
# memory that later answers need.
_GROWTH_BYTES = 256 << 20

# What math-verify raises when it cannot read an answer or compare it, beside its TimeoutException. It handles almost
# all of sympy's errors itself. Any other error means that math-verify does not work.
_REFUSALS = (ValueError, ArithmeticError, RecursionError)
# Answers and gold answers of several kinds, and the rewards. If they come out otherwise, nothing is judged.
_KNOWN = (
    ("53", "53", 1.0),
    ("\\frac{1}{2}", "0.5", 1.0),
    ("x^2+2x+1", "(x+1)^2", 1.0),
    ("\\{2, 1\\}", "1,2", 1.0),
    ("54", "53", 0.0),
    ("\\frac{1}{3}", "0.5", 0.0),
)
_PACKAGES = ("math-verify", "latex2sympy2_extended", "antlr4-python3-runtime", "sympy")
_ASIDE_S = 8.0  # CPU seconds for a response that is judged for another thread


class GoldError(RewardError):
    """math-verify cannot read a gold answer. The data is at fault, not the response."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@lru_cache(maxsize=1)
def _extraction() -> list[Any]:
    from math_verify import LatexExtractionConfig

    # Only a boxed answer counts. Otherwise the last bare number of an unfinished text would be read as its answer.
    return [LatexExtractionConfig(boxed_match_priority=0)]


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise math-verify's TimeoutException in the `with` block after _TIMEOUT_S CPU seconds of the main thread.

    The timer counts the CPU time of all threads. If it ends before the main thread has used up its time, it is started
    again for the rest.
    """
    from math_verify.errors import TimeoutException

    end = time.thread_time() + _TIMEOUT_S

    def check(signal_number: int, frame: FrameType | None) -> None:
        remaining = end - time.thread_time()
        if remaining <= 0:
            raise TimeoutException
        signal.setitimer(signal.ITIMER_PROF, max(remaining, 0.01))

    before = signal.signal(signal.SIGPROF, check)
    signal.setitimer(signal.ITIMER_PROF, _TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _attempt(call: Callable[[], T], otherwise: T) -> T:
    """Call math-verify. Returns `otherwise` if it refuses or takes too long.

    Raises MemoryError, and JudgeError for every other error. Call it from the main thread, where the limit's signal
    arrives.
    """
    from math_verify.errors import TimeoutException

    if not _in_main_thread():
        raise JudgeError("math-verify's time limit needs the main thread")
    try:
        with _cpu_limit():
            return call()
    except (TimeoutException, *_REFUSALS):
        return otherwise
    except MemoryError:
        raise
    except Exception as error:
        raise JudgeError(f"math-verify failed: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _parse(text: str, mode: str) -> list[Any]:
    """Parse a text with math-verify. Returns an empty list if it cannot be read, or not in time."""
    from math_verify import parse

    options = {"extraction_mode": mode, "parsing_timeout": _NEVER_S, "raise_on_error": True}
    return _attempt(lambda: list(parse(text, _extraction(), **options)), [])


def _equal(gold: Any, parsed: Any) -> bool:
    """Return whether math-verify finds two expressions equal; False if it cannot tell, or not in time."""
    from math_verify import verify

    def equal() -> bool:
        equal = verify([gold], [parsed], timeout_seconds=_NEVER_S, raise_on_error=True)
        return bool(equal) and (isinstance(parsed, str) or numbers.may_be_equal(parsed, gold))

    return _attempt(equal, False)


@lru_cache(maxsize=65536)
def _gold(answer: str) -> tuple[Any, ...]:
    """Parse a gold answer, once for all responses of a problem. Raises GoldError if math-verify cannot."""
    parsed = _parse(f"\\boxed{{{plain(answer)}}}", "any_match")
    if not parsed:
        raise GoldError(f"math-verify cannot parse the gold answer {answer!r}")
    return tuple(parsed)


def readable(answer: str) -> bool:
    """Return whether math-verify can parse a gold answer. Raises JudgeError if it does not work here."""
    try:
        if _in_main_thread():
            check()
            _gold(answer)
        else:
            _aside()(["\\boxed{1}"], [answer])
    except GoldError:
        return False
    return True


def equal_golds(one: str, other: str) -> bool:
    """Return whether two gold answers are equal, as texts or as math-verify reads them."""
    try:
        return one == other or 1.0 in accuracy_reward([f"\\boxed{{{one}}}", f"\\boxed{{{other}}}"], [other, one])
    except GoldError:
        return False


@lru_cache(maxsize=1)
def check() -> None:
    """Raise JudgeError, in one line, unless math-verify and the packages under it judge known answers rightly here.

    Call it from the main thread. It takes .3 s once.
    """
    try:
        rewards = [float(_is_right(f"\\boxed{{{answer}}}", gold)) for answer, gold, _ in _KNOWN]
        wrong = [known for known, reward in zip(_KNOWN, rewards, strict=True) if known[2] != reward]
        why = f"{wrong[0][0]} for {wrong[0][1]} scores {1 - wrong[0][2]}" if wrong else ""
    except Exception as error:  # whatever it is, nothing can be judged
        why = _line(error)
    if why:
        installed = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        raise JudgeError(f"reward=maths cannot judge here: {why} ({installed}): install the versions in requirements/")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


_aside_lock = threading.Lock()


def _aside() -> MathsReward:
    """Return the worker process that judges for threads other than the main one. It ends with this process."""
    with _aside_lock:
        return _aside_worker()


@lru_cache(maxsize=1)
def _aside_worker() -> MathsReward:
    return MathsReward(1, _ASIDE_S)


def _has_box(completion: str) -> bool:
    """Return whether the text has a \\boxed{...}.

    A text without a box scores 0.0 anyway. To skip it saves the parser's search through long unfinished responses.
    """
    return "\\boxed" in completion


_AND = re.compile(r"[\s$]*(,|(,\s*)?(and|or|\\text\{\s*(and|or)\s*\}))[\s$]*")


def _boxed(completion: str) -> tuple[str, str]:
    """Return the box that was begun last, with the boxes before it that only a comma, "and" or "or" separates from it,
    and the texts in these boxes, separated by commas. Both are empty if that box is not complete.

    By itself math-verify reads all boxes of a text as one set, so an intermediate result in a box would make a right
    answer wrong. If there is no complete box, it reads any formula, so an unfinished text could count as right.
    """
    found: list[tuple[int, int, int]] = []  # of each box that is inside no other box: begin, begin of its text, end
    for box in boxes(completion):
        if not box[2]:
            if not found or found[-1][0] < box[0]:
                return "", ""
            continue
        while found and found[-1][0] > box[0]:
            found.pop()
        found.append(box)
    if not found:
        return "", ""
    first = len(found) - 1
    while first and _AND.fullmatch(completion, found[first - 1][2], found[first][0]):
        first -= 1
    texts = ",".join(completion[text : end - len("}")] for _, text, end in found[first:])
    return completion[found[first][0] : found[-1][2]].replace("\n", " "), texts


def _is_right(completion: str, answer: str) -> bool:
    if not _has_box(completion):
        return False
    gold = _gold(answer)  # before the response is parsed, which may take much memory
    boxed, texts = map(plain, _boxed(without_open_thought(completion)))
    if not may_be_equal(texts, plain(answer)):
        return False
    return any(_equal(*pair) for pair in product(gold, _parse(boxed, "first_match")))


def accuracy_reward(completions: list[str], answers: list[str]) -> list[float]:
    """Return 1.0 or 0.0 for each completion, against the gold answer at the same index.

    A completion that cannot be parsed scores 0.0. Raises GoldError for a gold answer that cannot be parsed, which is an
    error in the data, and JudgeError if math-verify does not work. A thread other than the main one gets its rewards
    from a worker process, because the time limits of math-verify use signals.
    """
    if not _in_main_thread():
        return _aside()(completions, answers)
    check()
    return [float(_is_right(completion, answer)) for completion, answer in zip(completions, answers, strict=True)]


class MathsReward:
    """Computes accuracy_reward in worker processes. hung: number of responses so far that hung or killed a worker."""

    def __init__(self, parallel: int, timeout_s: float):
        """timeout_s: CPU seconds for one response. After them its worker is killed, and it scores 0.0. Raises
        WorkerError.
        """
        self._workers = Workers(command("maths"), parallel, _PATIENCE * timeout_s, timeout_s)
        self.hung = 0

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return the rewards that accuracy_reward gives. A response that hangs or kills its worker scores 0.0."""
        pairs = list(zip(completions, answers, strict=True))
        with_box = [index for index, (completion, _) in enumerate(pairs) if _has_box(completion)]
        rewards = [0.0] * len(pairs)
        for index, reply in zip(with_box, self._workers.ask([pairs[index] for index in with_box]), strict=True):
            if reply is None:
                self.hung += 1
            elif "error" in reply:
                raise GoldError(reply["error"])
            else:
                rewards[index] = reply["reward"]
        return rewards

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""
        return self._workers.counts.take()

    def close(self) -> None:
        """Kill the workers."""
        self._workers.close()


def main() -> None:
    """Body of a worker process (rewards/workers.py): judge each answer that arrives as a JSON line."""
    die_with_parent()  # otherwise the end of standard input would be noticed only between two answers
    limit_memory(_MEMORY_BYTES)
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what sympy prints must not be read as an answer
    try:
        check()  # also imports everything that answers need
    except JudgeError as error:
        print(json.dumps({"ready": False, "why": str(error)}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    max_bytes = address_space() + _GROWTH_BYTES
    for line in questions:
        completion, answer = json.loads(line)
        try:
            reply: dict[str, Any] = {"reward": accuracy_reward([completion], [answer])[0]}
        except GoldError as error:
            reply = {"error": str(error)}
        except JudgeError as error:
            reply = {FAILED: str(error)}
        except MemoryError:  # perhaps earlier answers filled the memory: ask a new worker
            return
        retires = address_space() > max_bytes
        print(json.dumps({**reply, RETIRES: retires}), file=answers)
        if retires:
            return
