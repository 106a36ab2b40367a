"""Keys that something reads are accepted, though configs/ does not name them. bad_inputs.txt has refused ones."""

import pytest
from composed import composed_run


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.top_p=0.95", "+trainer.model_init_kwargs.attn_implementation=eager"],
        ["+drafter.max_candidates=8"],
        ["policy=smollm2", "policy.cold_start=words"],
        ["+engine.extra.num_gpu_blocks_override=64"],
        ["arm=self_draft_adaptive", "arm.budget.over.patience=3"],
        ["data=livecodebench", "data.columns.problem=question"],  # deepcoder's, which builds on problem_set
        ["setting=maths_paper", "task=rollout"],  # it sets task.lock_step, which a comparison reads
    ],
)
def test_accepted(overrides: list[str]) -> None:
    composed_run(*overrides)
