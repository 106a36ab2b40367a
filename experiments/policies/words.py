"""Word problems with small numbers, and worked solutions in varied words.

A problem tells how many things somebody has, and 1 to 10 events that change the number: more come, some go, the number
doubles or halves. All numbers lie in 1..20, so that a model learns the sums from some hundred solutions. A solution
goes through the events, may go through all of them again several times, and ends in ``\\boxed{answer}``. The repeated
passes make responses long-tailed and repetitive, like chains of thought. Nearly every line is worded in several ways,
so that the next word is uncertain as in real reasoning.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from experiments.policies.problems import SLOTS, Asked, Split, apply, distinct, problem_id
from experiments.policies.solutions import say

LARGEST_NUMBER = 20
LARGEST_START = 12
LARGEST_CHANGE = 9
# Number of events -> relative frequency. Long problems are rarer.
DEFAULT_MIX: Mapping[int, float] = MappingProxyType(
    {1: 0.12, 2: 0.2, 3: 0.2, 4: 0.14, 5: 0.1, 6: 0.08, 7: 0.05, 8: 0.04, 9: 0.03, 10: 0.04}
)
CHECK_AGAIN = 0.4  # probability that another pass follows, drawn after every pass
ASIDES = 0.2  # probability that an aside follows a line
MOST_PASSES = 5  # keeps nearly all solutions within the usual limit of tokens

SHE = ["Anna", "Mia", "Nora", "Lena", "Ruth", "Kate", "Sara", "Zoe", "Emma", "Ida"]
HE = ["Tom", "Sam", "Ben", "Omar", "Ivan", "Hugo", "Paul", "Leo", "Max", "Finn"]
THINGS = [
    "apples", "stamps", "books", "coins", "cards", "pencils",
    "shells", "marbles", "stickers", "buttons", "eggs", "stones",
]  # fmt: skip

# Each sign with the ways to tell the event. {k} is the number that comes or goes.
EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "+": ("buys {k} more", "finds {k}", "gets {k} from a friend", "wins {k}", "picks up {k} more"),
        "-": ("gives {k} away", "loses {k}", "sells {k}", "uses {k}", "gives {k} to a friend"),
        "*": ("doubles the number", "gets as many again"),
        "/": ("gives half of them away", "loses half of them"),
    }
)
# [a|b|c] stands for one of the texts between the bars, drawn each time. {who} is she or he.
_TOLD = "[Then|Next|After that|Later|Now] [{name}|{who}] {event}."
_BEGIN = (
    "[Let's see.|Let me think.|We go step by step.|One thing after the other.|I will work this out.|Okay.|] "
    "[At first|At the start|In the beginning|To begin with,|First] {name} has {start}[ {things}|]."
)
_LINE = (
    "[Then|Next,|After that|Now|So|Later|And] [{name}|{who}] {event}[:|, so|, and|. That is|. This makes|. We get] "
    "{equation}[.|.|, so {result} now.| {things}.|, that is {result}.]"
)
_SHORT_LINE = "[{event}:|Again|So|Next|Then|] {equation}[.|,|, yes.|, right.|, good.]"
_ASIDE = "[Good.|Fine so far.|That seems right.|Okay, on we go.|Not hard.|Hmm, yes.|Let me go on.]"
_CHECK = (
    "[Let me check|Wait, let me check|I will check|Let me make sure|Hmm, let me look again|I go through it again|"
    "Once more, to be sure]: {name} [starts with|begins with|has] {start}."
)
_END = (
    "[So|Therefore|In the end,|Now|Thus] {name} has {answer}[ {things}|]. "
    "[The answer is|Answer:|That gives] \\boxed{{{answer}}}."
)

Event = tuple[str, int, str]  # sign, number (2 for doubling and halving), and how it is told


@dataclass(frozen=True)
class WordProblem(Asked):
    """One question with its start and its events."""

    name: str
    things: str
    start: int
    events: tuple[Event, ...]


def make_word_problems(
    count: int, seed: int, mix: Mapping[int, float] = DEFAULT_MIX, split: Split = "warm_start"
) -> list[WordProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    mix: number of events -> relative frequency. Raises ValueError if the mix has too few questions.
    """
    return distinct(count, mix, random.Random(f"words/{seed}"), _draw_problem, SLOTS[split])


def worked_solution(problem: WordProblem, rng: random.Random) -> str:
    """Write a solution of ``problem``, in words that ``rng`` chooses. Its boxed answer is right."""
    start, answer = str(problem.start), problem.answer
    words = {**_words(problem.name), "things": problem.things, "start": start, "answer": answer}
    lines = [_say(_BEGIN, rng, words), *_pass(problem, rng, _LINE, words)]
    for _ in range(MOST_PASSES - 1):
        if rng.random() >= CHECK_AGAIN:
            break
        lines += [_say(_CHECK, rng, words), *_pass(problem, rng, rng.choice((_LINE, _SHORT_LINE)), words)]
    return "\n".join([*lines, _say(_END, rng, words)])


def _draw_problem(num_events: int, rng: random.Random) -> WordProblem:
    """Draw a problem whose numbers all lie in 1..20."""
    name, things = rng.choice(SHE + HE), rng.choice(THINGS)
    start = value = rng.randint(2, LARGEST_START)
    events: list[Event] = []
    while len(events) < num_events:
        sign, number = rng.choice("+++---*/"), rng.randint(1, LARGEST_CHANGE)
        if sign in "*/":
            number = 2
        if (sign == "/" and value % 2) or not 1 <= apply(value, (sign, number)) <= LARGEST_NUMBER:
            continue
        value = apply(value, (sign, number))
        events.append((sign, number, rng.choice(EVENTS[sign]).format(k=number)))
    told = " ".join(_say(_TOLD, rng, {**_words(name), "event": event}) for _, _, event in events)
    question = f"{name} has {start} {things}. {told} How many {things} does {name} have in the end?"
    return WordProblem(problem_id("words", question), question, str(value), name, things, start, tuple(events))


def _words(name: str) -> dict[str, str]:
    """The words for a person in the templates."""
    return {"name": name, "who": "she" if name in SHE else "he"}


def _pass(problem: WordProblem, rng: random.Random, template: str, words: Mapping[str, str]) -> list[str]:
    """Return one line for each event, with its equation."""
    lines, value = [], problem.start
    for sign, number, event in problem.events:
        result = apply(value, (sign, number))
        equation = f"{value}{sign}{number}={result}"
        line = _say(template, rng, {**words, "event": event, "equation": equation, "result": str(result)})
        lines.append(f"{line} {_say(_ASIDE, rng, words)}" if rng.random() < ASIDES else line)
        value = result
    return lines


def _say(template: str, rng: random.Random, words: Mapping[str, str]) -> str:
    return say(template, rng, words).strip()
