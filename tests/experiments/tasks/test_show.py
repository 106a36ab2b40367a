"""The page that marks drafted tokens: what it marks is what the engine counted."""

import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from analysis import read
from analysis.drafted_text import DraftedText
from experiments.run.errors import UserError
from experiments.tasks import show


def test_all_tokens_of_a_pass_but_the_last_are_marked() -> None:
    text = DraftedText("p", ["a", "<", "c", "d", "e"], [1, 3, 4], num_drafted=8)  # the last pass goes beyond the end
    assert text.accepted == [False, True, True, False, True]
    assert "<pre>a<mark>&lt;c</mark>d<mark>e</mark></pre>" in text.html()
    assert "5 tokens in 3 passes: 1.67 a pass, 3 of 8 drafted tokens accepted (38%)" in text.html()


@pytest.mark.slow
def test_the_page_shows_what_a_run_drafted(compared: Path, tmp_path: Path, repetitive_policy: str) -> None:
    shutil.copytree(compared / "arms" / "das" / "rollouts", tmp_path / "arms" / "das" / "rollouts")
    task = {"run": str(tmp_path), "arm": "das", "steps": None, "responses": 1000, "tokenizer": repetitive_policy}
    show.run(OmegaConf.create({"task": task}), [], str(tmp_path))
    page = (tmp_path / show.PAGE).read_text()
    shares = re.findall(r"(\d+) of (\d+) drafted tokens accepted", page)
    rows = [row for step in (1, 5) for row in read.rollout(compared / "arms" / "das", step)]
    drafted = [row for row in rows if row["drafted"]]
    assert [int(all_drafted) for _, all_drafted in shares] == [row["drafted"] for row in drafted]
    accepted = [len(row["response_ids"]) - row["passes"] for row in drafted]
    # A response that ends inside a pass has one token of that pass fewer that is not drafted.
    assert all(0 <= int(shown) - count <= 1 for (shown, _), count in zip(shares, accepted, strict=True))
    assert sum(accepted) > 0
    assert "http" not in page
    with pytest.raises(UserError, match="choose task"):
        show.run(OmegaConf.create({"task": {**task, "steps": [99]}}), [], str(tmp_path))


def test_pieces_of_a_response_are_its_text(repetitive_policy: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(repetitive_policy)
    ids = tokenizer("what is 3 + 4? add 7 to 15").input_ids
    assert "".join(show.pieces(tokenizer, ids)) == tokenizer.decode(ids)
