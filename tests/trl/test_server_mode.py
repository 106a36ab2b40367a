"""TRL with vllm_mode="server": what its client asks of a server and says about it. Trainings: engine/test_server.py."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
import torch
from trl.generation.vllm_client import VLLMClient

from das.general.errors import EngineError
from das.trl.engines import server
from das.trl.engines.server import ServerClient
from das.weights import gloo_transfer as weight_transfer

OURS = {"method": "custom_class", "model": "das.engine.proposer.DasProposer"}
MODEL = {"dtype": "torch.float32", "logprobs_mode": "processed_logprobs"}


def client_of(monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    """A client of a server with this configuration that was never started."""
    client = object.__new__(ServerClient)
    client.base_url, client.host, client.group_port = "http://127.0.0.1:8000", "127.0.0.1", 0
    usual = {"parallel_config": {"worker_cls": "das.engine.worker.DasWorker"}, "speculative_config": None}
    usual["additional_config"] = {"das": {}}
    usual |= {"model_config": MODEL, "weight_transfer_config": None}
    monkeypatch.setattr(client, "get_server_info", lambda: usual | config, raising=False)
    return client


@pytest.mark.parametrize(("method", "config", "message"), [
    ("das", {}, r"drafts by none, and das.speculate\('das'\) asks for das: start it with `VLLM_SERVER_DEV_MODE=1 "),
    ("das", {"speculative_config": {"method": "ngram", "model": None}}, "drafts by ngram, and .* asks for das"),
    ("das", {"speculative_config": OURS, "additional_config": {"das": {"self_draft": "w4"}}},
     """drafts by self_draft, and .* asks for das: .*-config '{"method": "das"}' """),
    ("none", {"model_config": {**MODEL, "logprobs_mode": "raw_logprobs"}}, "returns raw_logprobs, and TRL needs proc"),
    ("none", {"parallel_config": {"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}}, "does not run das: start it"),
])  # fmt: skip
def test_servers_that_were_started_otherwise_are_refused(
    method: str, config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=message):
        client_of(monkeypatch, **config).require_das(method)


def test_servers_that_were_started_for_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(monkeypatch)
    client.require_das("none")
    client_of(monkeypatch, speculative_config=OURS).require_das("das")
    ngram = {"method": "ngram", "model": "ngram"}
    client_of(monkeypatch, speculative_config=ngram).require_das("ngram")
    with pytest.raises(EngineError, match=r"""start it with --weight-transfer-config '\{"backend": "das_gloo"\}'"""):
        client.init_communicator("cpu")


def test_only_requests_of_rollouts_join_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = client_of(monkeypatch), []
    monkeypatch.setattr(VLLMClient, "_post", lambda client, url, **kwargs: sent.append(kwargs["json"]))
    for path in ("v1/completions", "v1/chat/completions"):
        client._post(f"{client.base_url}/{path}", json={"prompt": "p"})
    client._post(f"{client.base_url}/inference/v1/generate", json={"sampling_params": {"n": 2}})
    client._post(f"{client.base_url}/v1/completions", json={"vllm_xargs": {"das_problem": "q"}})
    client._post(f"{client.base_url}/collective_rpc", json={"method": "das_call"})
    no_history = {"das_limit": 0}
    assert sent == [
        *[{"prompt": "p", "vllm_xargs": no_history}] * 2,
        {"sampling_params": {"n": 2, "extra_args": no_history}},
        {"vllm_xargs": {"das_problem": "q"}},
        {"method": "das_call"},
    ]


def test_a_server_that_fails_before_it_takes_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers take nothing, and the trainer does not wait for them."""
    client = client_of(monkeypatch)

    def post(url: str, **kwargs: Any) -> dict[str, Any]:
        if url.endswith("/update_weights"):
            raise RuntimeError("Request failed: 500,\nno memory")
        return {}

    monkeypatch.setattr(client, "_post", post)
    monkeypatch.setattr(client, "get_world_size", lambda: 1, raising=False)
    door = server.listen("127.0.0.1", 0)
    port = door.getsockname()[1]
    groups: list[Any] = []
    worker = threading.Thread(target=lambda: groups.append(weight_transfer.join("127.0.0.1", port, 1, 2)))
    worker.start()
    client.gloo = weight_transfer.join("127.0.0.1", port, weight_transfer.TRAINER, 2, door)
    worker.join()
    weights = torch.ones(1000)
    with pytest.raises(EngineError, match="cannot take weights, see its log: Request failed: 500, no memory"):
        client.update_named_params([("w", "float32", [1000])], iter([("w", weights)]))


def test_requests_that_change_the_server_are_sent_once() -> None:
    """TRL repeats what failed."""
    posted = []

    class Failing(BaseHTTPRequestHandler):
        def answer(self, status: int) -> None:
            body = json.dumps({"data": [{"id": "policy"}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(200)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            posted.append(self.path)
            self.answer(500)

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        client = ServerClient(base_url=f"http://127.0.0.1:{http.server_port}")
        for path in server.ONCE:
            with pytest.raises(Exception, match="Request failed: 500"):
                client._post(f"{client.base_url}/{path}", json={})
        http.shutdown()
    assert posted == [f"/{path}" for path in server.ONCE]


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    client = object.__new__(ServerClient)
    client.base_url, client.session = f"http://127.0.0.1:{port}", requests.Session()
    with (
        pytest.warns(RuntimeWarning, match=f"no server answers at http://127.0.0.1:{port} .* POLICY --spec"),
        pytest.raises(requests.exceptions.ConnectionError),
    ):
        client.check_server(0.0)


def test_a_server_that_does_not_tell_how_it_was_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client, answer = object.__new__(ServerClient), requests.Response()
    client.base_url, client.session, answer.status_code = "http://127.0.0.1:8000", requests.Session(), 404
    monkeypatch.setattr(client.session, "get", lambda url, **further: answer)
    with pytest.raises(EngineError, match=r"start the server at .*:8000 with VLLM_SERVER_DEV_MODE=1"):
        client.require_das("das")
