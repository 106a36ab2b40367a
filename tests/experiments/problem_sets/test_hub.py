"""A set of the hub. A local server acts as the hub."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from refusals import one_line

from experiments import problem_sets

COMMIT = "a" * 40
CARD = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: train.jsonl}\n---\n"
FILES = {"README.md": CARD, "train.jsonl": b'{"question": "1+1?", "answer": "#### 2"}\n' * 3}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub that `datasets` uses: one set, and one set that is a script."""

    def do_HEAD(self) -> None:
        _, _, path = self.path.partition("/datasets/")
        name = path.partition("/resolve/")[2].partition("/")[2].partition("?")[0]
        script = name.endswith(".py") and "script" in self.path
        if "/resolve/" in path:
            content = b"" if script else FILES.get(name)
            tag = hashlib.sha1(content or b"").hexdigest()
            etag_or_error = {"etag": f'"{tag}"'} if content is not None else {"x-error-code": "EntryNotFound"}
            self.reply(content, {"x-repo-commit": COMMIT, **etag_or_error})
        elif "/tree/" in path:
            entries = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": "0" * 40} for name in FILES]
            self.reply(json.dumps(entries).encode(), {"content-type": "application/json"})
        elif path:
            description = {"id": "somebody/set", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            self.reply(json.dumps(description).encode(), {"content-type": "application/json"})
        else:
            self.reply(b"" if self.path == "/" else None, {})

    do_GET = do_HEAD

    def reply(self, body: bytes | None, headers: dict[str, str]) -> None:
        self.send_response(404 if body is None else 200)
        for key, value in {"content-length": str(len(body or b"")), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", endpoint)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give both libraries empty caches."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("cache")
def test_a_set_is_read_from_the_hub(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"http://127.0.0.1:{server.server_port}")

    def rows(name: str = "somebody/set", subset: str = "main", split: str = "train") -> list[dict[str, str]]:
        hub = {"id": name, "subsets": [subset], "split": split, "revision": "main"}
        return list(problem_sets._rows({"path": None, "hub": hub}))

    assert rows() == [{"question": "1+1?", "answer": "#### 2"}] * 3
    for wrong, says in (
        ({"subset": "other"}, "'other' not found"),
        ({"split": "test"}, 'Unknown split "test"'),
        ({"name": "somebody/script"}, "scripts are no longer supported"),
    ):
        with one_line(rf"^somebody/\w+ cannot be loaded: .*{says}.*set data.path=FILE"):
            rows(**wrong)
