"""The maths reward: it compares values, tolerates garbage and is fast enough for every response."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewards.maths import MathsReward, accuracy_reward


@pytest.fixture(scope="module")
def workers() -> Iterator[MathsReward]:
    """Two workers with a time limit that no ordinary answer comes near."""
    reward = MathsReward(2, 8.0)
    yield reward
    reward.close()


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("The result is \\boxed{53}.", "53", 1.0),
        ("a) 50+3=53\nThe result is \\boxed{", "53", 0.0),
        ("so \\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("", "53", 0.0),
        ("\\boxed{}}}{{ \x00 \\frac{ \\boxed{\\boxed{", "53", 0.0),
        ("\\boxed{nonsense ++ *}", "53", 0.0),
        ("first \\boxed{53}\nthen \\boxed{54}.", "53", 0.0),
        ("$\\boxed{1}$, $\\boxed{2}$, and $\\boxed{3}$", "1,2,3", 1.0),
        ("\\boxed{1}, \\boxed{2} or \\boxed{3}", "2", 0.0),
        ("\\boxed{1 \\text{ or } 2 \\text{ or } 3}", "2", 0.0),
        ("\\boxed{53 = 54}", "53", 0.0),
        ("\\boxed{\n53\n}", "53", 1.0),
        ("\\boxed{\\{2, 1\\}}", "1,2", 1.0),
        ("\\boxed{50\\%}", "50", 0.0),
        ("\\boxed{\uff15\uff13}", "53", 0.0),
        ("\\boxed{52}", "52_8", 0.0),
        ("\\boxed{52_{8}}", "52_8", 1.0),
        ("\\boxed{x = 52_8}", "52_8", 1.0),
        ("\\boxed{53_8}", "53", 0.0),
        ("\\boxed{53_{ten}}", "53", 1.0),
        ("\\boxed{\\{0, 1\\}}", "(0,1)", 0.0),
        ("\\boxed{(0, 1)}", "\\{0,1\\}", 0.0),
        ("\\boxed{0, 1}", "(0,1)", 1.0),
        ("\\boxed{\\{(0, 1), (2, 3)\\}}", "(0,1),(2,3)", 1.0),
        ("\\boxed{2\\infty}", "\\infty", 0.0),
        ("\\boxed{+\\infty}", "\\infty", 1.0),
        ("\\boxed{11_{(2)}}", "11_2", 1.0),
        ("\\boxed{53^1_8}", "53", 0.0),
        ("\\boxed{53'_8}", "53", 0.0),
        ("\\boxed{\\frac{53_8}{1}}", "53", 0.0),
        ("\\boxed{1\\cdot53_8}", "53", 0.0),
        ("\\boxed{C^5_3}", "C^5_3", 1.0),
        ("\\boxed{53h}", "53", 0.0),
        ("\\boxed{53 h}", "53", 1.0),
        ("\\boxed{2}", "2h", 1.0),
        ("\\boxed{1010 \\text{ (base 2)}}", "1010_2", 1.0),
        ("\\boxed{1010 \\text{ (base 2)}}", "1010", 0.0),
        ("\\boxed{(0, \\infty + 1)}", "(0,\\infty)", 0.0),
        ("\\boxed{[0, \\infty]}", "(0,\\infty)", 0.0),
        ("\\boxed{[-\\infty, 0]}", "(-\\infty,0]", 0.0),
        ("\\boxed{x \\in (0, +\\infty)}", "(0,\\infty)", 1.0),
        ("\\boxed{\\left(0, {\\infty}\\right)}", "(0,\\infty)", 1.0),
        ("\\boxed{\\mathbb{R}}", "(-\\infty,\\infty)", 1.0),
        ("\\boxed{\\infty \\text{ (diverges)}}", "\\infty", 1.0),
        ("\\boxed{2\\left(\\infty\\right)}", "\\infty", 0.0),
        ("\\boxed{\\left(\\infty\\right)}", "\\infty", 1.0),
        ("\\boxed{x \\in \\{0, 1\\}}", "(0,1)", 0.0),
        ("\\boxed{\\{0, 1\\} \\text{ as a set}}", "(0,1)", 0.0),
        ("\\boxed{5}", "5,5", 0.0),
        ("\\boxed{5} and \\boxed{5}", "5,5", 1.0),
        ("\\boxed{5}, \\boxed{5}", "5", 1.0),
        ("\\boxed{5000000}", "5,000,000", 1.0),
        ("\\boxed{53 \\text{ or none}}", "53", 0.0),
        ("\\boxed{-12, -30}", "-12 \\text{ or } -30", 1.0),
        ("\\boxed{(-\\infty,1)\\cup(2,\\infty)}", "(-\\infty,1)\\cup(2,\\infty)", 1.0),
        ("\\boxed{53 \\text{ or } 53}", "53", 1.0),
        # The box that was begun last decides.
        ("So \\boxed{53}. Wait: \\boxed{7", "53", 0.0),
        ("So \\boxed{53}. Wait: \\boxed", "53", 0.0),
        ("\\boxed{53} \\boxed{\\frac{1}{2}", "53", 0.0),
        ("\\boxed{7 \\boxed{53}.", "53", 1.0),
        ("\\boxed{53} as \\boxed asks.", "53", 1.0),
        # A thought that does not end holds no answer.
        ("<think> maybe \\boxed{53} but", "53", 0.0),
        ("\\boxed{53} <think> or \\boxed{54}?", "53", 1.0),
        ("<think>a</think> <think> \\boxed{53}", "53", 0.0),
        ("<think> maybe \\boxed{54} </think> \\boxed{53}", "53", 1.0),
        ("<think> maybe \\boxed{54</think> \\boxed{53}", "53", 1.0),
        ("\\boxed{53.}", "53", 1.0),  # punctuation and spaces at the end, and between thousands
        ("\\boxed{\\frac{1}{2}\\,.}", "0.5", 1.0),
        ("\\boxed{\\text{B}.}", "\\text{B}", 1.0),
        ("\\boxed{3!.}", "6", 1.0),
        ("\\boxed{53!}", "53", 0.0),
        ("\\boxed{2.53}", "253", 0.0),
        ("\\boxed{10\u2009000.}", "10000", 1.0),
        ("\\boxed{10{,}000,}", "10000", 1.0),
        ("\\boxed{10\\,00}", "10000", 0.0),
        ("\\boxed{10\\,000}", "10000", 1.0),
        ("\\boxed{\\frac{1}{2^{98}}}", "2^{-99}", 0.0),  # numbers whose difference is small beside 1
        ("\\boxed{\\{1, 2^{-98}\\}}", "\\{1,2^{-99}\\}", 0.0),
        ("\\boxed{10^{-30}}", "0", 0.0),
        ("\\boxed{0.0000333}", "\\frac{1}{30000}", 1.0),
        ("\\boxed{0.333333}", "\\frac{1}{3}", 1.0),
        ("\\boxed{\\sqrt{2}\\sqrt{3}-\\sqrt{6}}", "0", 1.0),
    ],
)
def test_reward_of_one_completion(completion: str, answer: str, reward: float) -> None:
    assert accuracy_reward([completion], [answer]) == [reward]


def test_workers_agree_with_this_process(workers: MathsReward) -> None:
    completions = [f"so \\boxed{{{text}}}" for text in ("53", "\\frac{1}{2}", "54", "x+1", "}{", "")] + ["53"]
    answers = ["53", "0.5", "53", "1+x", "53", "53", "53"]
    assert workers(completions, answers) == accuracy_reward(completions, answers) == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="gold answer"):
        workers(["\\boxed{1}"], [""])
    assert workers(["\\boxed{1}"], ["1"]) == [1.0]


def test_a_response_that_hangs_affects_only_its_own_worker() -> None:
    slow = "\\boxed{9^{9^{9^{9}}}}"  # math-verify's own limit would end it after 2 s
    reward = MathsReward(1, 1.0)
    reward.take_counts()
    assert reward([slow, "\\boxed{3}"], ["3", "3"]) == [0.0, 1.0]
    assert reward.hung == 1
    assert reward.take_counts() == {"judge_deaths": 0, "judge_failures": 1, "judge_timeouts": 0}
    reward.close()


OTHER_FORMS = {
    "\\frac{106}{2}": "53",
    "\\frac{3}{4}": "\\frac{6}{8}",
    "x^2+2x+1": "(x+1)^2",
    "\\sqrt{12}+\\pi": "2\\sqrt{3}+\\pi",
    "\\frac{x^2-1}{x-1}": "x+1",
}


def judge_other_forms(reward: MathsReward) -> list[float]:
    """Rewards of right answers in another form than the gold answer, which take sympy some work."""
    return reward([f"\\boxed{{{answer}}}" for answer in OTHER_FORMS], list(OTHER_FORMS.values()))


@pytest.mark.slow  # a worker is replaced after each of the larger ones
@pytest.mark.nightly
def test_responses_that_fill_the_memory_take_none_from_others() -> None:
    """sympy keeps these integers of up to 512 MB in its cache."""
    reward = MathsReward(1, 8.0)
    sizes = [4 << 30] * 2 + [(4 << 30) >> k for k in (1, 2, 3, 5, 8)]
    floors = [f"\\lfloor 2.0^{{{size + index}}} \\rfloor" for index, size in enumerate(sizes)]
    for floor in floors:
        assert reward([f"\\boxed{{{floor}}}"], ["53"]) == [0.0]
    assert judge_other_forms(reward) == [1.0] * len(OTHER_FORMS)
    assert reward([f"\\boxed{{\\{{{','.join(floors)}\\}}}}"], ["\\frac{7}{13}"]) == [0.0]  # a new gold answer
    assert judge_other_forms(reward) == [1.0] * len(OTHER_FORMS)
    reward.close()


def test_a_pause_of_the_machine_changes_no_reward(workers: MathsReward) -> None:
    # Each takes math-verify about half a second, so that a pause meets it while it works.
    golds = ["+".join(f"x_{{{term}}}" for term in range(first, first + 40)) for first in range(4)]
    with ThreadPoolExecutor(1) as aside:
        rewards = aside.submit(workers, [f"\\boxed{{{gold}}}" for gold in golds], golds)
        for pause_s, number in ((0.1, signal.SIGSTOP), (2.3, signal.SIGCONT)):
            time.sleep(pause_s)
            for worker in workers._workers._all:
                worker.process.send_signal(number)
        assert rewards.result() == [1.0] * len(golds)
