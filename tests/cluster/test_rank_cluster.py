"""Two ranks that train on a cluster compute what two ranks with an engine each do, bit for bit."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripts import run_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`"),
]
SCRIPT = Path(__file__).with_name("rank_cluster_run.py")
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
EXACT = ("tokens", "logprobs", "losses", "problems")


def ranks(folder: Path, job: str) -> list[Any]:
    """What each rank did in a job."""
    return [json.loads((folder / f"{job}_rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def folder(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """none with an engine in each rank, das on one engine and on two engines of a cluster."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(*LAUNCH, SCRIPT, repetitive_policy, folder / "own", "none:0")
    run_script(*LAUNCH, SCRIPT, repetitive_policy, folder / "cluster", "das:1", "das:2")
    return folder


@pytest.mark.parametrize("engines", [1, 2])
def test_a_cluster_changes_nothing(folder: Path, engines: int) -> None:
    own, cluster = ranks(folder / "own", "none_0"), ranks(folder / "cluster", f"das_{engines}")
    for of_own, of_cluster in zip(own, cluster, strict=True):
        for before, after in zip(of_own["steps"], of_cluster["steps"], strict=True):
            assert [after[name] for name in EXACT] == [before[name] for name in EXACT]
        assert of_cluster["weights"] == of_own["weights"]
    assert own[0]["weights"] == own[1]["weights"]
    assert own[0]["steps"][0]["tokens"] != own[1]["steps"][0]["tokens"]
    assert sum(step["accepted"] for rank in cluster for step in rank["steps"]) > 0
