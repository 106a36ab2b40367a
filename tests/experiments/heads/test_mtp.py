"""The files of a policy with an MTP layer, which transformers saves without it, and policies that have none."""

import json
from pathlib import Path

import pytest
import torch
from conftest import mtp_policy
from transformers import AutoModelForCausalLM

from das.models.head_files import mtp_problem
from experiments.digests import weights_digest
from experiments.heads import files


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(mtp_policy(tmp_path_factory.mktemp("mtp_policy")))


def test_what_transformers_saves_gets_its_layer_back(policy: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert not files.is_mimo(tmp_path)
    assert mtp_problem(str(tmp_path), 1) == ""  # the config goes on naming a layer that is gone
    files.put_back(tmp_path, files.mtp_tensors(policy))
    assert files.is_mimo(tmp_path)
    assert (tmp_path / files.MTP_WEIGHTS).read_bytes() == (policy / files.MTP_WEIGHTS).read_bytes()
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert weights_digest(again) == weights_digest(model)


def test_policies_without_a_layer_are_refused(policy: Path, tiny_policy: str, tmp_path: Path) -> None:
    assert mtp_problem(str(policy), 3) == mtp_problem("some/hub-id", 3) == ""
    assert "has no MTP layer" in mtp_problem(tiny_policy, 3)
    config = json.loads((policy / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 2}))
    assert "a multiple of the policy's 2 MTP layers" in mtp_problem(str(tmp_path), 3)
