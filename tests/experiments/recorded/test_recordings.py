"""task=recordings against a local server that serves the published formats, and without a network."""

import gzip
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
from composed import composed_run

from experiments.recorded import recordings as recorded
from experiments.run.errors import UserError
from experiments.simulate.rollouts import read_rollouts
from experiments.tasks import recordings

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
        listed[f"a_{form}"] = {**about, "files": [["run", COMMIT, path, blob, len(content)]]}
    (tmp_path / "list.json").write_text(json.dumps(listed))
    monkeypatch.setattr(recorded, "LIST", tmp_path / "list.json")
    return folder


@pytest.fixture
def server(published: Path) -> Iterator[str]:
    """The address of a server of the folder `published`."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(published))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


def fetched(source: str, folder: Path, *settings: str) -> None:
    recordings.run(composed_run("task=recordings", f"task.source={source}", f"task.folder={folder}", *settings), [], "")


def test_every_form_becomes_rollouts(server: str, tmp_path: Path) -> None:
    fetched(server, tmp_path / "out")
    for form, (_, _, expected) in FILES.items():
        path = tmp_path / "out" / f"a_{form}.jsonl.gz"
        rows = list(recorded_rows(path))
        assert [(row["sample"], row["reward"], row.get("response") or row["response_ids"]) for row in rows] == expected
        assert len(read_rollouts(path)[0].problems) == len(expected)
    fetched("http://127.0.0.1:9", tmp_path / "out")  # nothing is fetched twice, so no server is missed


def test_saved_files_do_without_a_network(published: Path, tmp_path: Path) -> None:
    fetched(f"file://{published}", tmp_path / "out", "task.only=[a_areal]")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a_areal.jsonl.gz"]


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
    known = recorded.recordings()
    assert len({recording.name for recording in known}) == 6
    for recording in known:
        assert recording.form in recorded.FORMS
        assert len({file.path for file in recording.files}) == len(recording.files)
        assert all(len(file.commit) == len(file.blob) == 40 for file in recording.files)
        assert all(0 < file.size < 10**7 for file in recording.files)


OK = b"HTTP/1.1 200 OK\r\n"
AREAL_SIZE = len(FILES["areal"][1])
# What a server answers, piece by piece, and words of the line. `...`: the pieces are sent without end.
ANSWERS_OF_SERVERS: dict[str, tuple[list[bytes], str]] = {
    "breaks off": ([OK + b"Content-Length: 1000\r\n\r\n0123456789"], f"broke off after 10 of {AREAL_SIZE} bytes"),
    "breaks off in a chunk": ([OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n0123"], "IncompleteRead"),
    "a bad chunk": ([OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n0123"], "cannot be fetched"),
    "no HTTP": ([b"\x00\x1b[2Jgarbage\r\n\r\n"], "cannot be fetched"),
    "nothing": ([b""], "cannot be fetched (Remote end closed"),
    "half a head": ([b"HTTP/1.1 20"], "cannot be fetched"),
    "a long head": ([OK + b"X: " + b"a" * 70_000 + b"\r\n\r\n"], "got more than 65536 bytes"),
    "many heads": ([OK + b"X: a\r\n" * 200 + b"\r\n"], "got more than 100 headers"),
    "a number that is none": ([b"HTTP/1.1 999999 OK\r\n\r\n"], "cannot be fetched"),
    "nothing to be found": ([b"HTTP/1.1 404 Not Found\r\n\r\n"], "cannot be fetched (Not Found"),
    "a circle": ([b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n"], "cannot be fetched"),
    "a file of this machine": ([b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"], "cannot be fetched"),
    "one byte more": ([OK + b"\r\n" + b"a" * (AREAL_SIZE + 1)], f"has more than the {AREAL_SIZE} bytes that"),
    "an endless body": ([OK + b"\r\n", *[b"a" * 4096] * 100_000], f"has more than the {AREAL_SIZE} bytes that"),
    "a slow head": ([OK, *[b"X"] * 100_000], "has not sent the files of a_areal in 1 s"),
    "a slow body": ([OK + b"\r\n", *[b"X"] * 100_000], "has not sent the files of a_areal in 1 s"),
}


@pytest.mark.parametrize("answer", ANSWERS_OF_SERVERS)
def test_whatever_a_server_answers_is_one_line(
    answer: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, words = ANSWERS_OF_SERVERS[answer]
    monkeypatch.setattr(recorded, "ANSWER_S", 1.0 if "slow" in answer else 120.0)
    sent, done = [0], threading.Event()

    class Answers(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            with suppress(OSError):
                for piece in pieces:
                    self.request.sendall(piece)
                    sent[0] += len(piece)
                    if len(piece) == 1 and done.wait(0.02):
                        break

    with ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(UserError, match=re.escape(words)) as refused:
                fetched(f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "out", "task.only=[a_areal]")
        finally:
            done.set()
            server.shutdown()
    assert len(str(refused.value)) < 700
    assert sent[0] < 10**8, "it is refused while it streams"
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("source", ["http://127.0.0.1:xx", "http://127.0.0.1:80 0", "nowhere", "http://[::1", "x://y"])
def test_addresses_that_are_none(source: str, published: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be fetched"):
        fetched(f"'{source}'", tmp_path / "out", "task.only=[a_areal]")


def recorded_rows(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)
