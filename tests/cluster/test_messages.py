"""Responses are compared bit for bit; weights have a checksum; a Ray that does not answer is named in one line."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from das.budget.schedule import LongestFirst
from das.cluster import local_ray
from das.cluster.actor import versions_with
from das.cluster.messages import ClusterError, Response, predicted, require_equal_versions, weights_checksum
from das.cluster.settings import ClusterSettings
from das.cluster.weights import packed, unpacked
from das.engine import versions
from das.engine.rollouts.report import RequestCost
from das.engine.rollouts.rollout import RolloutRequest

RESPONSE = Response(0, np.arange(3, dtype=np.int32), np.array([-1.0, -0.5, -0.25]), "stop", 1, RequestCost(2, 1))


def test_a_response_is_equal_to_itself_from_another_engine_and_to_nothing_else() -> None:
    assert RESPONSE.equals(replace(RESPONSE, cost={"passes": 3}))
    smallest_change = np.nextafter(RESPONSE.logprobs, 0)
    for change in (
        {"tokens": np.array([0, 1, 3], np.int32)},
        {"tokens": np.arange(2, dtype=np.int32)},
        {"logprobs": smallest_change},
        {"logprobs": None},
        {"finish_reason": "length"},
        {"weights": 2},
    ):
        assert not RESPONSE.equals(replace(RESPONSE, **change))


def test_checksum_covers_every_bit_and_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(1.5)}
    parts = list(packed(tensors.items()))
    assert [name for part in parts for name, _, _ in part.tensors] == ["a", "b", "c"]
    before = weights_checksum(parts)
    monkeypatch.setattr("das.cluster.weights.PART_BYTES", 1)
    assert len(list(packed(tensors.items()))) == 3
    for name, tensor in (pair for part in packed(tensors.items()) for pair in unpacked(part)):
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])
    assert weights_checksum(packed(tensors.items(), drafter=True)) != weights_checksum(packed(tensors.items()))
    tensors["b"][2] = 1.0078125  # the next number
    monkeypatch.undo()
    assert weights_checksum(packed(tensors.items())) != before
    renamed = [("d" if name == "c" else name, tensor) for name, tensor in tensors.items()]
    assert weights_checksum(packed(renamed)) != weights_checksum(packed(tensors.items()))


def test_siblings_are_expected_to_have_quantiles_of_their_problems_lengths() -> None:
    schedule = LongestFirst()
    schedule.observe(["long"] * 8 + ["short"] * 8, [400] * 4 + [40] * 4 + [10] * 8)
    request: dict[str, Any] = {"prompts": [[]] * 4, "sampling_params": None, "seeds": [0] * 4, "step": 0}
    problems = ["short", "long", "short", "long"]
    learned = predicted(RolloutRequest(problems=problems, next_history_tick=0, schedule=schedule, **request))
    assert [each.index for each in learned] == [0, 1, 2, 3]
    assert learned[1].predicted > learned[3].predicted > learned[2].predicted
    given = predicted(RolloutRequest(problems=problems, next_history_tick=0, **request))
    assert {each.predicted for each in given} == {0.0}


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"engines": 0}, {"silent_s": 0.0}, {"start_s": -1.0}, {"weights": "nccl"}):
        with pytest.raises(ValueError, match=f"cluster.{next(iter(settings))}"):
            ClusterSettings(**settings)  # type: ignore[arg-type]


def test_without_ray_the_line_names_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="make ray"):
        local_ray.connect(ClusterSettings(), 1, 0)


def test_another_version_of_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(versions, "installed", lambda *names: "2.9.0")
    with pytest.raises(versions.UnsupportedVersion, match=r"^ray 2\.9\.0: das supports 2\.60\.0; install it"):
        local_ray.connect(ClusterSettings(), 1, 0)


def test_an_address_of_another_form_is_refused() -> None:
    for address in ("nowhere", "ray://node:10001", ":6379", "node:", "node:123456"):
        with pytest.raises(ValueError, match=f"cluster.address={address}: must be HOST:PORT"):
            ClusterSettings(address=address)


def test_folders_of_killed_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    living, dead = (tmp_path / f"{local_ray.PREFIX}{pid}-x" for pid in (os.getpid(), 2**22 + 1))
    for folder in (living, dead, tmp_path / "other"):
        folder.mkdir()
    local_ray.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, "other"])


def test_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ours = versions_with(str(tmp_path))
    require_equal_versions(versions_with(str(tmp_path)), ours)
    with pytest.raises(ClusterError, match="another torch than the trainer"):
        require_equal_versions({**ours, "torch": "1.0"}, ours)
    (tmp_path / "model.safetensors").write_bytes(b"weights" * 2**19)
    others = versions_with(str(tmp_path))
    with pytest.raises(ClusterError, match=f"another policy at {tmp_path} than the trainer"):
        require_equal_versions(others, ours)
    (tmp_path / "model.safetensors").write_bytes(b"weights" * 2**19 + b"!")
    assert versions_with(str(tmp_path)) != others
    with pytest.raises(ClusterError, match="than the trainer: none there"):
        require_equal_versions(versions_with("nowhere"), ours)
