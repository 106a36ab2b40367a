"""Rows with the names and types of the columns of the published sets. Their content is made up."""

import json
from typing import Any

CHAT = [{"role": "user", "content": "How many is $1+1$? Output the final answer within \\boxed{}."}]

# Set -> rows in the form in which the hub, or a local file of the same set, has them.
ROWS: dict[str, list[dict[str, Any]]] = {
    "problem_set": [{"problem": "How many is 1+1?", "answer": "2"}],
    "dsr_sub": [
        {
            "data_source": "deepscaler",
            "prompt": CHAT,
            "ability": "math",
            "reward_model": {"ground_truth": "2", "style": "rule"},
            "extra_info": {"index": 0, "split": "train"},
        }
    ],
    "deepscaler": [{"problem": "How many is $1+1$?", "answer": "2", "solution": "It is $\\boxed{2}$."}],
    "math500": [
        {
            "problem": "How many is $1+1$?",
            "solution": "It is $\\boxed{2}$.",
            "answer": "2",
            "subject": "Prealgebra",
            "level": 1,
            "unique_id": "test/prealgebra/1.json",
        },
        {  # the file of One-Shot-RLVR
            "data_source": "simplerl/math500",
            "prompt": [{"role": "user", "content": "How many is $1+2$?"}],
            "ability": "math",
            "reward_model": {"ground_truth": "2", "style": "rule"},
            "extra_info": {"index": 0, "level": "2", "unique_id": "test/prealgebra/2.json", "url": ""},
            "__index_level_0__": 0,
        },
    ],
    "aime24": [{"id": 60, "problem": "How many is $1+1$?", "solution": "2", "answer": "2", "url": "", "year": "2024"}],
    "gsm8k": [{"question": "How many is 1+1?", "answer": "It is 1 + 1 = <<1+1=2>>2.\n#### 2"}],
    "dapo_math_17k": [
        {
            "prompt": "How many is $1+1$?",
            "solution": "2",
            "data_source": "math_dapo",
            "source_prompt": CHAT,
            "ability": "MATH",
            "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
        }
    ],
    "deepcoder": [
        {  # primeintellect
            "problem": "Print the double of a number.",
            "solutions": ["print(2 * int(input()))"],
            "tests": json.dumps([{"type": "stdin_stdout", "fn_name": None, "input": "2\n", "output": "4\n"}]),
        },
        {
            "problem": "Return the double of a number, by a function f.",
            "solutions": ["def f(x): return 2 * x"],
            "tests": json.dumps([{"type": "function_call", "fn_name": "f", "input": [2], "output": [4]}]),
        },
        {  # taco
            "problem": "Print the double, once more.",
            "solutions": [],
            "tests": json.dumps({"inputs": ["1\n", ["2"]], "outputs": ["2\n", ["4"]]}),
        },
        {
            "problem": "Return the doubles.",
            "solutions": [],
            "tests": json.dumps({"fn_name": "f", "inputs": [[[1, 2]]], "outputs": [[[2, 4]]]}),
        },
        {  # lcbv5
            "problem": "Return the sum of two lists' lengths.",
            "starter_code": "class Solution:\n    def f(self, a, b):\n",
            "tests": json.dumps(
                [{"input": "[1, 2]\n[3]", "output": "3", "testtype": "functional", "metadata": {"func_name": "f"}}]
            ),
            "metadata": {"func_name": "f"},
        },
        {
            "problem": "Print the double, again.",
            "starter_code": "",
            "tests": json.dumps([{"input": "3", "output": "6", "testtype": "stdin", "metadata": {"func_name": None}}]),
            "metadata": {"func_name": None},
        },
        {  # the LeetCode file in DeepCoder's repository
            "problem": "Please complete:\n```python\nclass Solution:\n    def double(self, x: int) -> int:\n```",
            "solutions": "class Solution:\n    def double(self, x): return 2 * x",
            "tests": {
                "functional": "def check(candidate):\n    assert candidate(x = 2) == 4\n\n\ncheck(Solution().double)"
            },
        },
    ],
    "livecodebench": [
        {
            "problem": "Return the tuple (x, x).",
            "starter_code": "class Solution:\n    def f(self, x):\n",
            "tests": json.dumps([{"input": "1", "output": "[1, 1]", "testtype": "functional", "metadata": {}}]),
            "metadata": json.dumps({"func_name": "f"}),
        }
    ],
}

# Solutions for the rows of the code sets, in the order of ROWS.
SOLUTIONS: dict[str, list[str]] = {
    "deepcoder": [
        "print(2 * int(input()))",
        "def f(x): return 2 * x",
        "print(2 * int(input()))",
        "def f(xs): return [2 * x for x in xs]",
        "class Solution:\n    def f(self, a, b): return len(a) + len(b)",
        "print(2 * int(input()))",
        "class Solution:\n    def double(self, x): return 2 * x",
    ],
    "livecodebench": ["class Solution:\n    def f(self, x): return (x, x)"],
}
