"""What das says before an engine starts."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_policies import config_of
from transformers import PretrainedConfig

import das
from das.engine import checked_policies, self_test, versions
from das.engine.build import build_engine
from das.engine.settings import EngineSettings
from das.general.errors import EngineError


def engine(folder: Path) -> Any:
    """Build an engine as scripts do."""
    from vllm import LLM

    das.install()
    arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 4})
    return LLM(str(folder), skip_tokenizer_init=True, max_model_len=128, **arguments)


def stock(folder: Path) -> Any:
    """Build stock vLLM's engine as the harness does."""
    return build_engine(EngineSettings(str(folder), "stock"), skip_tokenizer_init=True)


def narrow() -> PretrainedConfig:
    config = config_of("Qwen3ForCausalLM")
    config.head_dim = 16
    return config


LINEAR = "does not support the linear attention of Qwen3NextForCausalLM: drafts change its tokens; take stock vLLM"
LATENT = "on a CPU, tokens of DeepseekV2ForCausalLM depend on the batch"
HEADS = "its attention heads have size 16, and vLLM's attention on a CPU knows 32, 64, 80"


def test_a_draft_model_whose_config_is_damaged_is_named(tmp_path: Path) -> None:
    """As a download leaves it that was cut off."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineError, match=f"^{tmp_path}/config.json cannot be read "):
        das.engine_arguments("draft_model", speculative={"model": str(tmp_path), "num_speculative_tokens": 4})


@pytest.mark.parametrize(
    ("config", "build", "line"),
    [
        (config_of("Qwen3NextForCausalLM"), engine, LINEAR),
        (config_of("DeepseekV2ForCausalLM"), engine, LATENT),
        (narrow(), engine, HEADS),
        (narrow(), stock, HEADS),
    ],
)
def test_policies_whose_tokens_drafts_change_are_refused_in_one_line(
    config: PretrainedConfig, build: Callable[[Path], Any], line: str, tmp_path: Path
) -> None:
    """The folder has no weights: the refusal comes before they are read."""
    config.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=line) as refused:
        build(tmp_path)
    assert "\n" not in str(refused.value)


class SelfTest:
    """Stands in for the process of the self-test. identity: what it writes; None: it ends without."""

    def __init__(self, identity: dict[str, Any] | None) -> None:
        self.identity, self.policies = identity, []  # type: ignore[var-annotated]

    def __call__(self, command: list[str], **options: Any) -> SimpleNamespace:
        file, policy = command[-2:]
        self.policies.append(json.loads(policy)["model"])
        if self.identity is not None:
            Path(file).write_text(json.dumps(self.identity))
        return SimpleNamespace(returncode=1, stderr="no memory")


EQUAL = {
    **{"architecture": "Qwen3ForCausalLM", "dtype": "float32", "device": "cpu"},
    **{"differing_requests": 0, "requests": 24, "tokens": 1152, "accepted": 400},
}


@pytest.fixture
def unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks the tiny policy as the front end of a new process does, with another self-test. Nothing is known of it."""
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    self_test.make_model(tmp_path / "policy")
    das.install()
    arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 4})
    limits = {"skip_tokenizer_init": True, "max_model_len": 128, "dtype": "float32"}
    config = EngineArgs(str(tmp_path / "policy"), **limits, **arguments).create_engine_config()

    def check(identity: dict[str, Any] | None) -> list[str]:
        run = SelfTest(identity)
        monkeypatch.setattr(checked_policies.subprocess, "run", run)
        monkeypatch.setattr(checked_policies, "_compared", set())
        checked_policies.check_policy(config)
        return run.policies

    return check


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "das"]
    caplog.clear()
    return said


@pytest.mark.parametrize("what", ["vllm 0.99.0", "Qwen3ForCausalLM"])
def test_what_nobody_checked_is_compared_once(
    what: str, unchecked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown version of vLLM, or an unknown architecture. One line while it is compared, nothing later."""
    assert unchecked(EQUAL) == [], "both are known here"
    if what.startswith("vllm"):
        monkeypatch.setattr(versions, "installed", lambda *names: "0.99.0")
    else:
        monkeypatch.setattr(checked_policies, "CHECKED", frozenset())
    model = str(tmp_path / "policy")
    assert unchecked(EQUAL) == [model]
    assert lines(caplog)[0].startswith(f"das was not checked with {what}, and compares tokens of {model}")
    assert unchecked(EQUAL) == []
    assert lines(caplog) == []
    (answer,) = json.loads((tmp_path / "state" / "das" / "self_tests.json").read_text()).values()
    assert answer == EQUAL
    monkeypatch.setattr(checked_policies, "question", lambda *words: " ".join(words))  # das has changed since
    differing = {**EQUAL, "differing_requests": 2}
    for _ in range(2):
        with pytest.raises(EngineError, match=f"on {what} drafts change tokens or log-probs in 2 of 24") as refused:
            unchecked(differing)
        assert "\n" not in str(refused.value)
    assert len(lines(caplog)) == 1, "this answer is kept, too"


def test_a_self_test_that_cannot_run_is_one_line(
    unchecked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With an unknown architecture the engine is built all the same; with an unknown version of vLLM it is refused."""
    monkeypatch.setattr(checked_policies, "CHECKED", frozenset())
    unchecked(None)
    assert lines(caplog)[-1].endswith("could not compare tokens: the self-test ended with 1: no memory")
    monkeypatch.setattr(versions, "installed", lambda *names: "0.99.0")
    with pytest.raises(EngineError, match=r"the self-test ended with 1: no memory\): install vllm 0\.32\.0, or run"):
        unchecked(None)


def test_a_missing_torchvision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "Value error, Model architectures ['X'] failed to be inspected.\n  For further information visit vLLM\n"
    last = checked_policies.last_line(stderr)
    for torchvision, words in ((None, "need torchvision, in the build that belongs to the torch here"), ("there", "")):
        monkeypatch.setattr(checked_policies, "find_spec", lambda name, found=torchvision: found)
        assert checked_policies.advice(last).endswith(words)
        assert bool(checked_policies.advice(last)) == bool(words)


def test_head_sizes_are_those_of_vllm() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(checked_policies.CPU_HEADS) == CPUAttentionBackend.get_supported_head_sizes()
