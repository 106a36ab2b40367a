"""An engine of das without `das.install()` is refused in one line, whether vLLM found das's plug-in or not."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import das
from das.engine import environment, patches, plugin, versions

ROOT = Path(__file__).resolve().parents[2]
FORGETFUL = """
import os, sys
from vllm import LLM
import das
import das.engine.plugin

def refusal(method):
    try:
        LLM(sys.argv[1], dtype="float32", enforce_eager=True, gpu_memory_utilization=0.1, max_model_len=64,
            max_num_seqs=2, **das.engine_arguments(method)).collective_rpc("das_end_rollout", args=(1,))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"

before = dict(os.environ)
das.engine_arguments()
assert dict(os.environ) == before, "engine_arguments() changed the environment"
print("RESULT", refusal("das"))
das.engine.plugin.register()  # as vLLM does where das was installed with pip
print("RESULT", refusal("das"))
print("RESULT", refusal("none"))
"""


def test_forgotten(tiny_policy: str) -> None:
    names = ("VLLM_", "OMP_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    engine_here = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""}
    run = subprocess.run(
        [sys.executable, "-c", FORGETFUL, tiny_policy], cwd=ROOT, env={**clean, **engine_here},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    unpatched, *without_environment = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    assert "vLLM is not patched in this process: call das.install() before the engine is built" in unpatched
    assert len(without_environment) == 2
    for line in without_environment:
        assert line.startswith("RESULT NotInstalled: das.install() was not called: call it before the engine is built")


def test_an_environment_set_by_the_user_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for `vllm serve`, where nobody can call das.install()."""
    for name in environment.NEEDED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(versions.NotInstalled, match="VLLM_CPU_ATTN_SPLIT_KV=0 and VLLM_USE_V2_MODEL_RUNNER=0"):
        environment.require_environment()
    for name in environment.NEEDED:
        monkeypatch.setenv(name, "0")
    environment.require_environment()


def test_install_patches_and_keeps_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.delenv("VLLM_CPU_ATTN_SPLIT_KV", raising=False)
    das.install()
    assert os.environ["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"
    patches.require_applied()


def test_the_plugin_leaves_other_engines_alone_with_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls it for every engine of the environment; an engine of das is refused later, with the reason."""
    monkeypatch.setattr(patches, "_applied", False)
    monkeypatch.setattr(versions, "installed", lambda *names: "0.9.9")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugin.register()
    assert "das is not available in this process: vllm 0.9.9: das supports" in str(caught[0].message)
    with pytest.raises(versions.UnsupportedVersion, match=r"vllm 0\.9\.9"):
        patches.require_applied()


def test_vllm_alone_is_enough_for_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_trl(*names: str) -> str | None:
        return None if "trl" in names else "0.32.0"

    monkeypatch.setattr(versions, "installed", without_trl)
    versions.require_vllm()
    with pytest.raises(versions.UnsupportedVersion, match="trl is not installed: das supports"):
        versions.require_trl()
