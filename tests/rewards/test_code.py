"""The code reward: both forms of tests, and honest programs. test_whole_sets.py has the solutions of problem sets."""

import pytest

from rewards.code import CodeReward, leetcode_tests, program_tests


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


HONEST_PROGRAMS = {
    "atexit": "import atexit\natexit.register(lambda: print(int(input()) ** 2))",
    "atexit of buffered output": """
import atexit, io, sys
stdout, sys.stdout = sys.stdout, io.StringIO()
atexit.register(lambda: (stdout.write(sys.stdout.getvalue()), stdout.flush()))
print(int(input()) ** 2)""",
    "__stdout__": """
import io, sys
sys.stdout = io.StringIO()
print(int(input()) ** 2)
sys.__stdout__.write(sys.stdout.getvalue())""",
    "a file of its own": "out = open(1, 'w')\nprint(int(input()) ** 2, file=out)",
    "a binary file of its own": "out = open(1, 'wb')\nout.write(b'%d' % (int(input()) ** 2))",
    "no standard output left": "import sys\nprint(int(input()) ** 2, flush=True)\nsys.stdout = None",
    "exit": "print(int(input()) ** 2)\nexit()",
    "a thread with a large stack": """
import sys, threading
def depth(n):
    return depth(n - 1) + 1 if n else 0
def main():
    n = int(input())
    assert depth(50_000) == 50_000
    print(n ** 2)
    sys.exit(0)
sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 27)
thread = threading.Thread(target=main)
thread.start()
thread.join()""",
}


@pytest.mark.parametrize("source", HONEST_PROGRAMS.values(), ids=list(HONEST_PROGRAMS))
def test_output_is_complete_when_a_program_ends(code_reward: CodeReward, source: str) -> None:
    tests = program_tests([("6\n", "36"), ("7\n", "49")])
    assert code_reward([fenced(source)], [tests]) == [1.0], code_reward.verdicts


def test_lists_trees_and_other_values(code_reward: CodeReward) -> None:
    tests = leetcode_tests(
        "def check(candidate):\n"
        "    assert is_same_list(candidate(list_node([1, 2, 3])), list_node([3, 2, 1]))\n"
        "    assert is_same_list(candidate(list_node([])), list_node([]))\n"
        "check(Solution().f)"
    )
    turn = """
class Solution:
    def f(self, n):
        turned = None
        while n: turned = ListNode(n.val, turned); n = n.next
        return turned
"""
    assert code_reward([fenced(turn), fenced(turn.replace("n.val", "1"))], [tests] * 2) == [1.0, 0.0]
    tests = leetcode_tests(
        "def check(candidate):\n"
        "    assert is_same_tree(candidate(tree_node([1, None, 2, 3])), tree_node([1, 2, None, None, 3]))\n"
        "check(Solution().f)"
    )
    mirror = """
class Solution:
    def f(self, t):
        if t: t.left, t.right = self.f(t.right), self.f(t.left)
        return t
"""
    same = "class Solution:\n    def f(self, t): return t"
    assert code_reward([fenced(mirror), fenced(same)], [tests] * 2) == [1.0, 0.0]
    values = (
        "def check(candidate):\n    for v in (None, True, 1.5, float('inf'), 'ä\\ud800', b'x', 1j, (1, [2]), {1, 2}, "
        "frozenset([1]), {1: {'a': (2,)}}, 10 ** 50):\n        got = candidate(v)\n"
        "        assert got == v and type(got) is type(v)\ncheck(f)"
    )
    assert code_reward([fenced("def f(v): return v")], [leetcode_tests(values)]) == [1.0]


@pytest.mark.parametrize("tests", ["", "x = 1", "check(", "check(a, b)"])
def test_tests_of_an_unknown_form(tests: str) -> None:
    with pytest.raises(ValueError, match="tests that"):
        leetcode_tests(tests)
