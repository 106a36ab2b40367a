"""`python -m das serve`: the command line of vLLM's server. tests/engine/test_server.py starts it."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from das import __main__, serve
from das.drafter import HistoryDrafter
from das.engine.build import OPTIONS, engine_arguments
from das.engine.install import set_environment


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["das", "serve", "POLICY", *arguments])
    return __main__.main()


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict[str, Any]]:
    """The words before the first option, and the options."""
    words = shlex.split(capsys.readouterr().out)
    first = next(i for i, word in enumerate(words) if word.startswith("--") and word != "--model")
    options: dict[str, Any] = {}
    for word in words[first:]:
        if word.startswith("--"):
            options[name := word[2:]] = True
        else:
            options[name] = word
    return words[:first], options


def test_the_engine_gets_what_engine_arguments_gives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = {"name": "fixed", "tokens": 5}
    assert run(monkeypatch, "--print", "--drafter", '{"window": 3}', "--budget", json.dumps(budget), "--port", "1") == 0
    start, options = printed(capsys)
    wanted = engine_arguments("das", {"window": 3}, budget)
    assert start[:2] == ["VLLM_NO_USAGE_STATS=1", sys.executable]
    assert start[-1] == "POLICY"
    assert json.loads(options["speculative-config"]) == wanted["speculative_config"]
    assert json.loads(options["additional-config"]) == wanted["additional_config"]
    assert options["worker-cls"] == wanted["worker_cls"]
    assert options["no-async-scheduling"] is True
    assert options["port"] == "1"
    assert set(options) == {name.replace("_", "-") for name in wanted if name != "async_scheduling"} | {
        "no-async-scheduling",
        "port",
        "shutdown-timeout",
    }
    assert options["shutdown-timeout"] == str(serve.END_S)
    assert run(monkeypatch, "--print", "--shutdown-timeout", "0") == 0
    assert capsys.readouterr().out.count("--shutdown-timeout") == 1
    assert "branch_blocks" not in wanted["additional_config"]["das"]
    assert run(monkeypatch, "--print", "--branch-blocks", "64") == 0
    assert json.loads(printed(capsys)[1]["additional-config"])["das"]["branch_blocks"] == 64
    assert run(monkeypatch, "--print", "--method", "das_self", "--self-draft", '{"passes": 4}') == 0
    das = json.loads(printed(capsys)[1]["additional-config"])["das"]
    assert das["self_draft"] == {"weights": "w8a8", "passes": 4, "history": True}
    run(monkeypatch, "--print", "--method", "none")
    assert "speculative-config" not in printed(capsys)[1]
    assert run(monkeypatch, "--print", "--budget", '{"tokens": 8}') == 0
    assert json.loads(printed(capsys)[1]["additional-config"])["das"]["budget"] == {"tokens": 8}
    run(monkeypatch, "--print", "--asynchronous")
    assert json.loads(printed(capsys)[1]["additional-config"])["das"]["asynchronous"] is True


def test_every_option_of_engine_arguments_is_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--help")
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in OPTIONS)
    assert OPTIONS.keys() >= {
        "method",
        "drafter",
        "budget",
        "speculative",
        "self_draft",
        "branch_blocks",
        "asynchronous",
    }
    with pytest.raises(TypeError, match="engine_arguments\\(\\) has no option max_model_len: choose drafter, "):
        engine_arguments("das", max_model_len=5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--drafter", "{window: 8}"), "'{window: 8}' is not JSON"),
        (("--drafter", "[8]"), "is no JSON object"),
        (("--drafter", '{"windw": 8}'), "windw"),
        (("--drafter", '{"window": -1}'), "window"),
        (("--budget", '{"name": "fixed", "tokens": "many"}'), "a value of another type"),
        (("--budget", '{"name": "psychic"}'), "psychic"),
        (("--branch-blocks", "3"), "branch_blocks=3: a draft that branches needs 8"),
        (("--branch-blocks", "some"), "invalid int value: 'some'"),
        (("--method", "self_draft", "--self-draft", '{"weights": "w3"}'), "give weights, one of w8a8, w4"),
        (("--self-draft", '{"passes": 4}'), "das does not draft so; add --method self_draft or das_self"),
        (("--method", "eagle3"), "needs a head"),
        (("--method", "psychic"), "unknown speculation method 'psychic'"),
        (("--method", "stock"), "stock is vLLM as it comes"),
        (("--trust-remote-code",), "trust_remote_code=true: code that comes with a model is never run"),
        (("--trust-rem", "--port", "1"), "trust_remote_code=true"),
        (("--trust_remote_code=true",), "trust_remote_code=true"),
        (("--load-format", "pt"), "load_format=pt: weights are read by auto"),
        (("--worker-cls", "evil.Worker"), "worker_cls=evil.Worker: an engine of das takes no class by its name"),
        (
            ("--speculative-config", '{"method": "custom_class", "model": "evil.P"}'),
            "speculative_config.method=custom_",
        ),
        (("--kv-transfer-config.kv_connector_module_path", "evil"), "kv_connector_module_path=evil"),
    ],
)
def test_wrong_options_end_in_one_line(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(monkeypatch, *arguments)
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    last = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert words in last
    assert "error: " in last


def test_a_file_of_options_runs_no_model_code_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "options.yaml").write_text("port: 1\nno-trust-remote-code: true\nmodel-impl: vllm\n")
    assert run(monkeypatch, "--print", "--config", str(tmp_path / "options.yaml")) == 0
    (tmp_path / "options.yaml").write_text("port: 1\ntrust-remote-code: true\n")
    assert run(monkeypatch, "--print", "--config", str(tmp_path / "options.yaml")) == 2
    assert "config.trust-remote-code=true: code that comes with a model is never run" in capsys.readouterr().err


def test_a_damaged_history_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history.npz"
    HistoryDrafter().save(history)
    warm = ("--print", "--drafter", json.dumps({"warm": str(history)}))
    assert run(monkeypatch, *warm) == 0
    capsys.readouterr()
    history.write_bytes(history.read_bytes()[:-100])
    assert run(monkeypatch, *warm) == 2
    assert capsys.readouterr().err.startswith(f"error: {history}: not a readable .npz file")


@pytest.mark.parametrize("option", [("--port", "8000"), ("--print",)])
def test_the_policy_comes_first(
    option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["das", "serve", *option, "POLICY"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert f"error: POLICY comes first: python -m das serve POLICY {option[0]}" in capsys.readouterr().err


def test_help_needs_no_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["das", "serve", "--help"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert "directory or hub id" in capsys.readouterr().out


def test_a_server_on_a_gpu_gets_the_variables_of_an_engine_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "installed", lambda *names: "0.32.0")
    assert serve.environment() == {"VLLM_NO_USAGE_STATS": "1"}
    ours = serve.environment("bits")
    monkeypatch.setattr(os, "environ", {})
    set_environment(batch_invariant=True)
    assert ours["TRITON_F32_DEFAULT"] == "ieee"
    assert ours.items() <= os.environ.items()
    monkeypatch.setattr(serve, "installed", lambda *names: None)
    assert serve.environment("bits") == {"VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "the server listens on port 8000 of all interfaces, without a key: whoever reaches it may use it; add"),
        (("--host", "0.0.0.0", "--port", "80"), "port 80 of all interfaces, without a key"),
        (("--host=::",), "port 8000 of all interfaces, without a key"),
        (("--host", "10.0.0.7"), "on 10.0.0.7:8000, without a key"),
        (("--host", "127.0.0.1", "--port=81"), "the server listens on 127.0.0.1:81\n"),
        (("--host", "localhost"), "the server listens on localhost:8000\n"),
        (("--api-key", "secret"), "port 8000 of all interfaces, and clients need the key\n"),
        (("--uds", "/tmp/socket"), "the server listens at /tmp/socket\n"),
        (("--config", "CONFIG"), "the server listens on 127.0.0.1:82\n"),
        (("--config", "CONFIG", "--host", "10.0.0.7"), "on 10.0.0.7:82, without a key"),
        (("--config", "MISSING"), "port 8000 of all interfaces, without a key"),
    ],
)
def test_it_says_where_the_server_listens(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    (tmp_path / "config.yaml").write_text("host: 127.0.0.1\nport: 82\n")
    given = [option.replace("CONFIG", str(tmp_path / "config.yaml")) for option in options]
    assert run(monkeypatch, "--print", "--method", "none", *given) == 0
    said = capsys.readouterr().err
    assert line in said
    assert said.startswith("das: the server listens ")
    assert said.count("\n") == 1


def test_the_key_may_come_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert run(monkeypatch, "--print", "--method", "none") == 0
    assert "clients need the key" in capsys.readouterr().err
