"""Random overrides are accepted, or refused in one line that names the key. No engine starts.

RANDOM_OVERRIDES in the environment says how many; `make nightly` tries 2,000, at some five a second.
"""

import os
import random
from pathlib import Path

import pytest
from composed import composed
from omegaconf import OmegaConf

from experiments.arm.validate import check
from experiments.run.errors import one_line_errors
from experiments.settings import compose
from experiments.settings.checked import leaves
from experiments.settings.config import run_config
from experiments.settings.trainer import TrainerConfig, further_arguments

BASES = (
    ["task=train"],
    ["task=train", "arm=self_draft"],
    ["task=train", "arm=das", "budget=classes"],
    ["task=compare"],
    ["task=rollout", "budget=ladder"],
    ["task=train", "data=puzzles", "eval.every=2"],
    ["task=train", "data=programs", "reward=code"],
    ["task=train", "data=math500", "data.path=math500.parquet"],
    ["task=train", "cluster=ray"],
    ["task=train", "reward=own", "reward.function=tests:f"],
)
VALUES = (
    "null", "true", "false", "0", "1", "-1", "7", "2.5", "-0.5", "1e400", "nan", "-inf", "9" * 30, "foo", "''", "' '",
    "'a b'", "é", "'${seed}'", "'${nosuch}'", "'???'", "[]", "[1]", "[1,2]", "[foo]", "[null]", "[[1],[2]]", "[{}]",
    "{}", "{a:1}", "{a:{b:1}}", "{name:7}", "{name:das}", "float32", "none", "das", "1e-3", "a:b", "a/b", "../x",
)  # fmt: skip
GROUPS = (
    "policy", "data", "reward", "trainer", "engine", "cluster", "drafter", "head", "budget", "arm", "arm.speculative",
    "engine.extra", "policy.chat_template_kwargs", "trainer.chat_template_kwargs", "data.kinds",
    "reward.limits", "vary", "experiment",
)  # fmt: skip
OTHERS = (  # arguments of TRL that a run does not take, and keys that nothing reads
    *("trainer.shuffle_dataset", "trainer.remove_unused_columns", "trainer.resume_from_checkpoint", "trainer.seed"),
    *("trainer.vllm_gpu_memory_utilization", "trainer.use_vllm", "trainer.output_dir", "trainer.nosuch", "nosuch"),
    *("arm.budget", "arm.budget.name", "arm.budget.short", "data.hub", "data.kinds.walk", "engine.extra.foo"),
)


def cases(count: int) -> list[list[str]]:
    """Lists of overrides: a base, then one or two random ones. The same for every call."""
    draw = random.Random(39)
    keys = {
        tuple(base): sorted(key for key, _ in leaves(OmegaConf.to_container(composed(*base), resolve=True)))
        for base in BASES
    }
    more = [
        *OTHERS,
        *GROUPS,
        *(f"trainer.{name}" for name in (*TrainerConfig.model_fields, *further_arguments().model_fields)),
    ]
    made = []
    for _ in range(count):
        base = draw.choice(BASES)
        settings = []
        for _ in range(draw.choice((1, 1, 2))):
            key = draw.choice(draw.choice((keys[tuple(base)], keys[tuple(base)], more)))
            sign = draw.choice(("", "", "+", "++", "~"))  # ~ deletes a setting
            settings.append(f"~{key}" if sign == "~" else f"{sign}{key}={draw.choice(VALUES)}")
        made.append([*base, *settings])
    return made


def lines_about(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a user reads about these overrides, without warnings; empty if they are accepted. Any other error than a
    refusal is raised."""
    capsys.readouterr()
    try:
        with one_line_errors():
            check(run_config(compose.composed(overrides).config))
    except SystemExit:
        return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    return []


def test_random_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, refused, count = [], 0, int(os.environ.get("RANDOM_OVERRIDES", "2000"))
    for overrides in cases(count):
        try:
            lines = lines_about([*overrides, f"out={tmp_path}"], capsys)
        except Exception as error:
            broken.append((overrides, repr(error)[:200]))
            continue
        refused += bool(lines)
        keys = [override.lstrip("+~").split("=")[0].split(".") for override in overrides]
        names = {name for group, *parts in keys for name in (parts or [group])}
        if len(lines) > 1 or not all(any(name in line for name in names) for line in lines):
            broken.append((overrides, lines[:200]))
    print(f"{count} overrides: {refused} refused in one line, {len(broken)} otherwise")
    assert not broken, "\n".join(map(str, broken[:50]))
