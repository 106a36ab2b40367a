"""What a run notes about its origin."""

import os

import pytest

from experiments.run.run_folder import commit


def test_a_machine_without_git_leaves_the_commit_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert commit() == "unknown"
