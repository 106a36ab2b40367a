"""Arms whose draft head, draft model or MTP layer learns in the run: equal to none in every bit, and resumed bit for
bit."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import mtp_policy, random_policy, sharpened
from lag_runs import outcome, train_again, train_all

from analysis import read
from das.heads import mtp
from das.heads.on_disk import mtp_problem
from experiments.tasks.kill_test import differing_files, timeless

pytestmark = pytest.mark.slow

STEPS = 4
RUN = [
    "data.problems=4", f"trainer.max_steps={STEPS}", "checkpoint.every=2", "trainer.learning_rate=0.01",
    "head.share=0.5", "head.responses=16", "head.epochs=2",
]  # fmt: skip


@dataclass
class Arms:
    """Finished runs of none, of an arm whose drafter stays, and of one whose drafter learns."""

    folder: Path
    policy: str
    frozen: str
    online: str

    def rows(self, arm: str) -> list[dict[str, Any]]:
        return read.metrics(self.folder / arm)

    def tokens_per_pass(self, arm: str) -> float:
        return float(sum(row["tokens"] for row in self.rows(arm)) / sum(row["passes"] for row in self.rows(arm)))


@pytest.fixture
def trained(in_process: Callable[..., Any], tmp_path: Path) -> Callable[..., Arms]:
    """Trains the arms, resumes the one that learns, and checks what holds for all kinds of drafters."""

    def train(policy: str, frozen: str, online: str, *further: str) -> Arms:
        settings = [*RUN, *further, f"cache={tmp_path / 'cache'}"]
        arms = Arms(tmp_path / "arms", policy, frozen, online)
        in_process(train_all, {name: [name, *settings] for name in ("none", frozen, online)}, policy, arms.folder)
        plain = outcome(arms.folder / "none")
        for name in (frozen, online):
            found = outcome(arms.folder / name)
            head = found["final"].pop("head", None)
            assert found == plain
            assert (head is not None) == (name == online)
            assert any("head_train_s" in row for row in arms.rows(name)) == (name == online)
            assert sum(row["accepted"] for row in arms.rows(name)) > 0
        assert any(row["head_texts"] and row["head_loss"] > 0 for row in arms.rows(online))
        # The policy moves fast here, and a drafter that follows it drafts better than the one that stays.
        assert arms.tokens_per_pass(online) > arms.tokens_per_pass(frozen)

        whole, again = arms.folder / online, tmp_path / "again"
        in_process(train_again, online, policy, whole, again, 2, *settings)
        assert read.final(again) == read.final(whole)
        assert list(differing_files(again, whole)) == []
        assert timeless(read.metrics(again)) == timeless(read.metrics(whole))
        return arms

    return train


def test_a_draft_head_learns_in_the_run(trained: Callable[..., Arms], tmp_path: Path) -> None:
    policy = sharpened(Path(random_policy(tmp_path / "policy", num_hidden_layers=4)))  # three auxiliary layers
    trained(policy, "eagle3_frozen", "eagle3_online")
    assert len(list((tmp_path / "cache" / "heads").iterdir())) == 1  # the arms share it


def test_a_draft_model_learns_in_the_run(trained: Callable[..., Arms], repetitive_policy: str, tmp_path: Path) -> None:
    draft_model = random_policy(tmp_path / "draft", num_hidden_layers=1, hidden_size=32)
    models = [f"++arm.speculative.model={draft_model}", "++arm.online_rate=0.3"]
    trained(repetitive_policy, "draft_model", "draft_model_online", *models)


def test_an_mtp_layer_learns_in_the_run(trained: Callable[..., Arms], tmp_path: Path) -> None:
    arms = trained(mtp_policy(tmp_path / "policy"), "mtp", "mtp_online")
    # Checkpoints are whole policies: transformers saves them without the layer, which is put back.
    names = ("none", "mtp", "mtp_online")
    layers = {name: arms.folder / name / "checkpoints" / f"step_0000{STEPS}" for name in names}
    assert not any(mtp_problem(str(folder), 1) for folder in layers.values())
    weights = {name: (folder / mtp.WEIGHTS).read_bytes() for name, folder in layers.items()}
    assert weights["none"] == weights["mtp"] == (Path(arms.policy) / mtp.WEIGHTS).read_bytes() != weights["mtp_online"]
