"""The list of hooks agrees with the installed vLLM, and a hook that is removed, moved or changed is found."""

import re
import zipfile
from pathlib import Path

import pytest

from das.engine.contract import hook_check
from das.engine.contract.hook_check import differences, installed_sources, wheel_sources
from das.engine.contract.hooks import HOOKS

INPUT_PROCESSOR = "vllm.v1.engine.input_processor"
RUNNER = "vllm.v1.worker.gpu_model_runner"
BATCH = "vllm.v1.worker.gpu_input_batch"
VERIFIER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return installed_sources()


def test_the_installed_vllm_has_every_hook(sources: dict[str, str]) -> None:
    assert len(sources) > 1000
    assert differences(sources) == {}
    assert hook_check.missing_hooks() == []


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "expected"),
    [
        (RUNNER, r"def _sample\(", "def _draw(", {f"{RUNNER}.GPUModelRunner._sample": "missing"}),
        (
            RUNNER,
            r"spec_decode_metadata: SpecDecodeMetadata \| None,\n    \) -> SamplerOutput",
            "drafts: SpecDecodeMetadata | None) -> SamplerOutput",
            {f"{RUNNER}.GPUModelRunner._sample": "takes (self, logits, drafts)"},
        ),
        (
            RUNNER,
            r"def _input_fits_in_drafter\(\n        self, ",
            "def _input_fits_in_drafter(self, batch, ",
            {f"{RUNNER}.GPUModelRunner._input_fits_in_drafter": "takes (self, batch, common_attn_metadata)"},
        ),
        (
            BATCH,
            r"\bself\.temperature_cpu =",
            "self.temperatures =",
            {f"{BATCH}.InputBatch.temperature_cpu": "missing"},
        ),
        (
            INPUT_PROCESSOR,
            r"class InputProcessor\b",
            "class RequestProcessor",
            {
                f"{INPUT_PROCESSOR}.InputProcessor.{name}": "missing"
                for name in ("__init__", "_validate_params", "speculative_config", "process_inputs")
            },
        ),
        (VERIFIER, r"def _verify\(", "def _check(", {f"{VERIFIER}.RejectionSampler._verify": "missing"}),
    ],
    ids=["removed", "parameter_renamed", "parameter_added", "attribute_renamed", "class_renamed", "second_runner"],
)
def test_a_changed_hook_is_found(
    sources: dict[str, str], module: str, pattern: str, replacement: str, expected: dict[str, str]
) -> None:
    changed, count = re.subn(pattern, replacement, sources[module])
    assert count >= 1
    found = differences({**sources, module: changed})
    assert {str(hook): instead for hook, instead in found.items()} == expected


def test_a_hook_in_another_module_has_moved(sources: dict[str, str]) -> None:
    moved = {**sources, "vllm.v1.engine.requests": sources[INPUT_PROCESSOR]}
    del moved[INPUT_PROCESSOR]
    assert set(differences(moved).values()) == {"moved to vllm.v1.engine.requests"}


def test_a_further_parameter_must_be_optional(sources: dict[str, str]) -> None:
    module = "vllm.v1.sample.ops.bad_words"
    for added, ok in (("in_place: bool = True,", True), ("*, in_place: bool,", False)):
        changed, count = re.subn(r"(def apply_bad_words\([^)]*)\)", rf"\1    {added}\n)", sources[module])
        assert count == 1
        assert (not differences({**sources, module: changed})) is ok


def test_a_wheel_is_read_as_it_is(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "raise RuntimeError('nobody may import this')")
        archive.writestr("vllm/v1/outputs.py", "class SamplerOutput:\n    sampled_token_ids: int\n")
        archive.writestr("vllm/_C.so", b"\x00")
        archive.writestr("other/x.py", "")
    read = wheel_sources(wheel)
    assert set(read) == {"vllm", "vllm.v1.outputs"}
    missing = differences(read)
    found = {str(hook) for hook in missing}
    assert "vllm.v1.outputs.SamplerOutput.logprobs_tensors" in found
    assert "vllm.v1.outputs.SamplerOutput.sampled_token_ids" not in found
    assert len(missing) == len(HOOKS) - 1


def test_missing_hooks_are_lines(sources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    without = {**sources, RUNNER: sources[RUNNER].replace("def _sample(", "def _draw(")}
    monkeypatch.setattr(hook_check, "installed_sources", lambda: without)
    assert hook_check.missing_hooks() == [f"{RUNNER}.GPUModelRunner._sample (verification by keyed noise): missing"]


def test_what_one_feature_needs_refuses_nothing(sources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = "vllm.distributed.weight_transfer.base"
    without = {**sources, module: sources[module].replace("def receive_weights(", "def take_weights(")}
    monkeypatch.setattr(hook_check, "installed_sources", lambda: without)
    assert [hook.name for hook in differences(without)] == ["WeightTransferEngine.receive_weights"]
    assert hook_check.missing_hooks() == []
