"""Keys that something reads are accepted, all others are refused by name."""

import pytest
from composed import composed
from hydra import initialize_config_dir

from experiments.run.checks import check_values
from experiments.run.compose import compose_config
from experiments.run.errors import CONFIGS, UserError


@pytest.mark.parametrize(
    "overrides",
    [
        ["+trainer.top_p=0.95", "+trainer.model_init_kwargs.attn_implementation=eager"],
        ["+drafter.max_candidates=8"],
        ["+engine.extra.num_gpu_blocks_override=64"],
        ["arms=[das,das_self]", "++arm.self_draft.passes=3"],
        ["arm=self_draft_adaptive", "arm.budget.over.patience=3"],
        ["data=reasoning_gym", "+data.options.min_terms=3"],
        ["data=livecodebench", "data.columns.problem=question"],  # deepcoder's, which builds on problem_set
        ["setting=maths_paper", "task=rollout"],  # it sets task.lock_step, which a comparison reads
    ],
)
def test_accepted(overrides: list[str]) -> None:
    check_values(composed(*overrides))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("+eval.evry=2", "eval.evry: there is no such setting; did you mean eval.every?"),
        ("+head.foo=1", "head.foo: there is no such setting; look at configs/head"),
        (
            "+drafter.max_candidate=1",
            "drafter.max_candidate: there is no such setting; did you mean drafter.max_candidates",
        ),
        ("+trainer.top_pp=1", "trainer.top_pp: there is no such setting; did you mean trainer.top_p?"),
        ("+data.chain_steps=[3]", "data.chain_steps: only data=calculator or programs has this setting"),
        ("+arm.budget.tokns=3", "arm.budget.tokns: there is no such setting; did you mean arm.budget.tokens?"),
    ],
)
def test_refused_with_and_without_a_plus_sign(override: str, line: str) -> None:
    with pytest.raises(UserError) as refused:
        check_values(composed(override))
    assert str(refused.value).startswith(line)
    with initialize_config_dir(str(CONFIGS), version_base=None), pytest.raises(UserError) as refused:
        compose_config([override.lstrip("+")])
    assert str(refused.value).startswith(line)
