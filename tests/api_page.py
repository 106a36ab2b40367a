"""Writes docs/api.md from the docstrings of the public names: python tests/api_page.py > docs/api.md

tests/test_docs.py compares the page with what this makes.
"""

import importlib
import inspect
import re
import textwrap
from typing import Any

# Module, what the section is about, and the public names: "Class" or "Class.method" or "function".
SECTIONS = (
    ("das", "In a script with TRL or vLLM", ("speculate", "install", "engine_arguments")),
    (
        "das.drafter",
        "The drafter, alone",
        (
            "HistoryDrafter",
            "HistoryDrafter.begin",
            "HistoryDrafter.observe",
            "HistoryDrafter.observe_batch",
            "HistoryDrafter.propose",
            "HistoryDrafter.propose_batch",
            "HistoryDrafter.propose_tree",
            "HistoryDrafter.end",
            "HistoryDrafter.end_step",
            "HistoryDrafter.save",
            "HistoryDrafter.load",
            "Draft",
            "Drafts",
            "TreeDraft",
            "TreeDrafts",
        ),
    ),
    (
        "das.budget",
        "Budgets",
        (
            "make_budget",
            "BudgetPolicy",
            "BudgetPolicy.begin_step",
            "BudgetPolicy.begin",
            "BudgetPolicy.limits",
            "BudgetPolicy.floors",
            "BudgetPolicy.trim",
            "BudgetPolicy.observe_pass",
            "BudgetPolicy.predict",
            "BudgetPolicy.end",
            "BudgetPolicy.end_step",
            "LiveRequest",
            "TargetPass",
        ),
    ),
    ("das.draft_round", "Drafter and budget together", ("DraftRound", "Proposal")),
    ("das.replay.workload", "Simulated rollouts", ("Workload", "workload")),
    ("das.replay.text_engine", "", ("TextEngine",)),
    ("das.replay.cluster", "", ("simulate_rollout",)),
    (
        "das.cluster.dispatcher",
        "Many engines",
        (
            "QueuedRequest",
            "Dispatcher",
            "Dispatcher.joined",
            "Dispatcher.take",
            "Dispatcher.finished",
            "Dispatcher.lost",
            "Dispatcher.draining",
        ),
    ),
    (
        "das.cluster.history_store",
        "",
        (
            "HistoryStore",
            "HistoryStore.add",
            "HistoryStore.missing",
            "HistoryStore.forget",
            "HistoryStore.end_step",
            "HistoryStore.saved",
            "HistoryStore.restore",
        ),
    ),
)


def page() -> str:
    """docs/api.md."""
    lines = [
        "# API",
        "",
        "The public names of the library, with their docstrings. This page is made by",
        "`python tests/api_page.py > docs/api.md`.",
        "The harness (`experiments/`, `analysis/`, `rewards/`) is used through `run.py`: [commands.md](commands.md).",
    ]
    for module, title, names in SECTIONS:
        if title:
            lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *entry(module, name)]
    return "\n".join(lines) + "\n"


def entry(module: str, name: str) -> list[str]:
    """Heading, signature and docstring of one public name."""
    item: Any = importlib.import_module(module)
    for part in name.split("."):
        item = getattr(item, part)
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(item)))  # annotations that are strings
    signature = re.sub(r"\b(collections\.abc|typing|pathlib|das\.[a-z_.]*)\.|\bself\b(, )?", "", signature)
    call = textwrap.wrap(name.split(".")[-1] + signature, width=110, subsequent_indent="    ")
    heading = "####" if "." in name else "###"
    return [
        f"{heading} `{name if '.' in name else f'{module}.{name}'}`",
        "",
        "```",
        *call,
        "",
        *(inspect.getdoc(item) or "").splitlines(),
        "```",
    ]


if __name__ == "__main__":
    print(page(), end="")
