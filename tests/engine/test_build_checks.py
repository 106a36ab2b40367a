"""What das says before an engine starts, and after a rollout."""

import json
from pathlib import Path

import pytest

import das
from das.engine.build import check_head_size
from das.errors import EngineError


def test_heads_that_no_attention_on_a_cpu_knows_are_refused_in_one_line(tmp_path: Path) -> None:
    def config(**values: int) -> None:
        (tmp_path / "config.json").write_text(json.dumps(values))

    config(hidden_size=64, num_attention_heads=4)
    with pytest.raises(EngineError, match=r"its attention heads have size 16, and vLLM's .* on a CPU knows 32, 64, 80"):
        check_head_size(str(tmp_path))
    config(hidden_size=64, num_attention_heads=4, head_dim=32)
    check_head_size(str(tmp_path))
    check_head_size("some/hub-id")


def test_a_rollouts_sentence_says_whether_it_went_well() -> None:
    report = {"passes": 1410, "drafted": 80, "step_emitted": [1000, 469]}
    sentence = das.rollout_sentence(report)
    assert sentence == ("das: 59 of 80 drafted tokens were accepted (74%); 1410 passes in place of 1469, 4% saved")
    assert "nothing was drafted in 9 passes" in das.rollout_sentence({"passes": 9, "drafted": 0})
