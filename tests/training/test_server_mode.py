"""TRL with vllm_mode="server" on a CPU: two servers, with drafts and without, and what a trainer makes with them."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trl_server import served

from das.budget import DEFAULT_BUDGET
from das.engine.build import EngineError, engine_arguments
from das.engine.patches import WEIGHT_TRANSFER
from das.training import server
from das.training.server import ServerClient, warn_if_exposed

EXACT = ("tokens", "logprobs", "losses")
TRANSFER = json.dumps({"backend": WEIGHT_TRANSFER})
# What colocated engines of rank_run.py have, on a machine where the engine runs in the server's own process.
SETTINGS = (
    "--host 127.0.0.1 --dtype float32 --enforce-eager --gpu-memory-utilization 0.1 --max-num-seqs 16 "
    "--max-num-batched-tokens 4096 --distributed-executor-backend uni --no-async-scheduling "
    "--logprobs-mode processed_logprobs --worker-cls das.engine.worker.DasWorker --weight-transfer-config"
)


@pytest.fixture(scope="module")
def results(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What three trainings did: das and none on a server each, and none colocated."""
    folder = tmp_path_factory.mktemp("server")
    arguments = engine_arguments("das", {"window": 2}, DEFAULT_BUDGET)
    drafts = ["--speculative-config", json.dumps(arguments["speculative_config"])]
    drafts += ["--additional-config", json.dumps(arguments["additional_config"])]
    start = [*SETTINGS.split(), TRANSFER]
    with (
        served(repetitive_policy, folder / "das.log", *start, *drafts) as das_url,
        served(repetitive_policy, folder / "none.log", *start) as none_url,
    ):
        script = str(Path(__file__).with_name("server_run.py"))
        command = [sys.executable, script, das_url, none_url, repetitive_policy, str(folder)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-3000:]
        with pytest.raises(
            EngineError, match="decides what drafts, and it was started with --speculative-config: leave"
        ):
            ServerClient(base_url=das_url).require_das(drafts=False)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_drafts_change_nothing(results: Any) -> None:
    das, none = results["das"], results["none"]
    for with_drafts, without in zip(das["steps"], none["steps"], strict=True):
        assert [with_drafts[name] for name in EXACT] == [without[name] for name in EXACT]
    assert das["weights"] == none["weights"]
    assert sum(step["accepted"] for step in das["steps"]) > 100
    assert all(step["drafted"] == 0 for step in none["steps"])
    assert [len(set(step["problems"])) for step in das["steps"]] == [4, 4, 4]


@pytest.mark.slow
def test_a_server_trains_as_an_engine_in_the_trainers_process(results: Any) -> None:
    server, colocated = results["none"], results["colocated"]
    for on_server, beside in zip(server["steps"], colocated["steps"], strict=True):
        assert [on_server[name] for name in EXACT] == [beside[name] for name in EXACT]
    assert server["weights"] == colocated["weights"]


def client_of(monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    """A client of a server with this configuration that was never started."""
    client = object.__new__(ServerClient)
    client.base_url, client.host = "http://127.0.0.1:8000", "127.0.0.1"
    usual = {"parallel_config": {"worker_cls": "das.engine.worker.DasWorker"}, "speculative_config": None}
    usual |= {"model_config": {"dtype": "torch.float32"}, "weight_transfer_config": None}
    monkeypatch.setattr(client, "get_server_info", lambda: usual | config, raising=False)
    return client


def test_servers_that_were_started_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(monkeypatch)
    assert client.require_das(drafts=False) == "float32"
    with pytest.raises(EngineError, match=r"it was started without --speculative-config: add it, or change das.specul"):
        client.require_das(drafts=True)
    with pytest.raises(EngineError, match=r"""start it with --weight-transfer-config '\{"backend": "das_gloo"\}'"""):
        client.init_communicator("cpu")
    stock = client_of(monkeypatch, parallel_config={"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"})
    with pytest.raises(EngineError, match=r"does not run das: start it with --worker-cls das.engine.worker.DasWorker"):
        stock.require_das(drafts=False)


@pytest.mark.parametrize(("url", "open_to_others", "warned"), [
    ("http://127.0.0.1:8000", False, False),
    ("http://0.0.0.0:8000", False, False),  # TRL's default; a client reaches its own machine by it
    ("http://127.0.0.1:8000", True, True),
    ("http://192.0.2.7:8000", False, True),
])  # fmt: skip
def test_a_server_that_others_can_reach_is_warned_of(
    url: str, open_to_others: bool, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(address: tuple[str, int], timeout: float) -> Any:
        assert address == ("192.0.2.1", 8000)
        if not open_to_others:
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(server, "get_ip", lambda: "192.0.2.1")
    monkeypatch.setattr(server.socket, "create_connection", connect)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_exposed(url)
    assert len(caught) == warned
    assert all("--host 127.0.0.1" in str(one.message) for one in caught)
