"""Every choice of every config group composes and builds engine settings."""

import pytest
from composed import composed_run
from hydra import compose, initialize_config_dir

from experiments.arm.engine import engine_settings
from experiments.arm.reward import make_reward
from experiments.run.errors import CONFIGS
from experiments.settings.groups import MadeData

CHOICES = [f"{path.parent.name}={path.stem}" for path in sorted(CONFIGS.glob("*/*.yaml"))]

NEEDED = {
    "engine=gpu": ["task.lock_step=false"],
    "drafter=own": ["drafter.name=history"],
    "budget=own": ["budget.name=fixed", "+budget.tokens=8"],
    "reward=own": ["reward.function=operator:length_hint"],
}  # what a user must say besides


# Keys that something reads, though configs/ does not name them. bad_inputs.txt has refused ones.
FURTHER = [
    "trainer.top_p=0.95 +trainer.model_init_kwargs.attn_implementation=eager",
    "+drafter.max_candidates=8",
    "policy=smollm2 policy.cold_start=words",
    "+engine.extra.num_gpu_blocks_override=64",
    "arm=self_draft_adaptive arm.budget.over.patience=3",
    "data=livecodebench data.columns.problem=question",  # deepcoder's, which builds on problem_set
    "setting=maths_paper task=rollout",  # it sets task.lock_step, which a comparison reads
]


@pytest.mark.parametrize("choice", [*CHOICES, *FURTHER])
def test_choice_composes(choice: str) -> None:
    config = composed_run(*choice.split(), *NEEDED.get(choice, ()))
    assert engine_settings(config, "somewhere").model == "somewhere"
    if isinstance(config.data, MadeData):
        assert config.data.mix
    assert callable(make_reward(config.reward))


@pytest.mark.parametrize("launcher", [path.stem for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml")])
def test_launcher_composes(launcher: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("config", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert config.hydra.launcher._target_.startswith("hydra_plugins.")
