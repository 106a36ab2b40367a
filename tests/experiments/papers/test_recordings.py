"""task=recordings on a folder of the published formats, and without a network."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from composed import composed_run

from experiments.papers import recordings as recorded
from experiments.run.errors import UserError
from experiments.simulate.rollouts import read_rollouts

COMMIT = "c" * 40
AREAL = [{"prompt": f"p{i}\n", "sample_idx": i % 2, "reward": 1.0, "completion": f"so {i}"} for i in range(4)]
ARCTIC = [{"input_token_ids": [1, 2], "output_token_ids": [3, 4 + i], "score": 0.0} for i in range(3)]
ANSWERS = [{"full_model_response": text, "score": 1} for text in ("<think>a", "<think>b")]
GYM = {"categories": [{"datasets": [{"results": [{"question": "q?", "completions": ANSWERS}]}]}]}
STEERED = [{"rollout_idx": i, "is_correct": is_right, "text": f"hm {i}"} for i, is_right in enumerate([True, None])]
# By form: the path of a file, its content, and the rows that it becomes: sample, reward, response.
FILES = {
    "areal": ("logs/a/0.jsonl", "\n".join(map(json.dumps, AREAL)), [(i % 2, 1.0, f"so {i}") for i in range(4)]),
    "arctic": ("tests/a 1.jsonl", "\n".join(map(json.dumps, ARCTIC)), [(i, 0.0, [3, 4 + i]) for i in range(3)]),
    "reasoning_gym": ("r/results.json", json.dumps(GYM), [(0, 1, "<think>a"), (1, 1, "<think>b")]),
    "steering": (
        "e/prob1_x/rollouts/position_2/alpha_0p0.json",
        json.dumps(STEERED),
        [(0, 1.0, "hm 0"), (1, 0.0, "hm 1")],
    ),
}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one made-up file of each form, which the list of recordings names."""
    folder, listed = tmp_path / "published", {}
    for form, (path, content, _) in FILES.items():
        file = folder / "owner" / "name" / COMMIT / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        blob = hashlib.sha1(f"blob {len(content)}\0{content}".encode()).hexdigest()
        about = {"repository": "owner/name", "licence": "MIT", "form": form, "model": "M", "temperature": 0.7}
        listed[f"a_{form}"] = {**about, "files": [["run", COMMIT, path, blob]]}
    (tmp_path / "list.json").write_text(json.dumps(listed))
    monkeypatch.setattr(recorded, "LIST", tmp_path / "list.json")
    return folder


def fetched(source: str, folder: Path, *settings: str) -> None:
    recorded.run(composed_run("task=recordings", f"task.source={source}", f"task.folder={folder}", *settings), [], "")


def test_every_form_becomes_rollouts(published: Path, tmp_path: Path) -> None:
    fetched(f"file://{published}", tmp_path / "out")
    for form, (_, _, expected) in FILES.items():
        path = tmp_path / "out" / f"a_{form}.jsonl.gz"
        rows = list(recorded_rows(path))
        assert [(row["sample"], row["reward"], row.get("response") or row["response_ids"]) for row in rows] == expected
        assert len(read_rollouts(path)[0].problems) == len(expected)
    fetched("http://127.0.0.1:9", tmp_path / "out")  # nothing is fetched twice, so no server is missed


def test_another_file_and_no_server_are_one_line(published: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be fetched.*task\.source=file:///FOLDER"):
        fetched("http://127.0.0.1:9", tmp_path / "out")
    content = FILES["areal"][1]
    (published / "owner" / "name" / COMMIT / FILES["areal"][0]).write_text(content.upper())
    with pytest.raises(UserError, match=r"0\.jsonl has not the digest"):
        fetched(f"file://{published}", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(UserError, match=r"task\.only: mine unknown; known are a_areal"):
        fetched(f"file://{published}", tmp_path / "out", "task.only=[mine]")


def test_the_list_is_well_formed() -> None:
    known = json.loads(recorded.LIST.read_text())
    assert len(known) == 6
    for recording in known.values():
        assert recording["form"] in recorded.FORMS
        assert len({path for _, _, path, _ in recording["files"]}) == len(recording["files"])
        assert all(len(commit) == len(blob) == 40 for _, commit, _, blob in recording["files"])


@pytest.mark.parametrize("source", ["http://127.0.0.1:xx", "http://127.0.0.1:80 0", "nowhere", "http://[::1", "x://y"])
def test_addresses_that_are_none(source: str, published: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be fetched"):
        fetched(f"'{source}'", tmp_path / "out", "task.only=[a_areal]")


def recorded_rows(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)
