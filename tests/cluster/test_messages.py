"""Weights are packed without a change; siblings are expected to have quantiles; what cannot be joined is refused."""

import socket
from typing import Any

import pytest
import ray
import torch

from das.budget.lengths import LongestFirst
from das.cluster.cluster import predicted
from das.cluster.connection import ClusterSettings, connect, require_listener
from das.cluster.rollout_engine import load_tensors, packed
from das.engine.rollouts.rollout import RolloutRequest
from das.general.errors import ClusterError


def test_packed_tensors_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(1.5)}
    for part_bytes, parts in ((2**20, 1), (1, 3)):
        monkeypatch.setattr("das.cluster.rollout_engine.PART_BYTES", part_bytes)
        made = list(packed(tensors.items(), drafter=True))
        assert len(made) == parts
        assert all(part.drafter for part in made)
        assert [name for part in made for name in part.names] == ["a", "b", "c"]
        found = {name: tensor for part in made for name, tensor in load_tensors(part.data.tobytes()).items()}
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)


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


def test_an_address_of_another_form_is_refused() -> None:
    for address in ("nowhere", "ray://node:10001", ":6379", "node:", "node:123456"):
        with pytest.raises(ValueError, match=f"cluster.address={address}: must be HOST:PORT"):
            ClusterSettings(address=address)


def test_a_new_ray_that_does_not_start_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = []

    def init(**options: Any) -> None:
        assert options["address"] == "local"
        if outcomes.pop(0):
            raise Exception("The current node timed out during startup.\nThis could happen")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    outcomes += [True, False]
    assert connect(ClusterSettings(), 1) == (ray, True)
    outcomes += [True, True]
    with pytest.raises(
        ClusterError, match=r"^Ray did not start: The current node timed out during startup\. This could"
    ):
        connect(ClusterSettings(), 1)


def test_an_address_where_nothing_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_listener(f"127.0.0.1:{port}")
    with pytest.raises(ClusterError, match=rf"cluster.address=127.0.0.1:{port}: no Ray answers there"):
        require_listener(f"127.0.0.1:{port}")
