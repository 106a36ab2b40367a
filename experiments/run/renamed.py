"""Settings that have a new name, and what is gone. Using an old name gives one line that says what to use now."""

from omegaconf import DictConfig, OmegaConf, open_dict

# Old key -> new key, as they are written on the command line.
RENAMED = {
    "drafter.others": "drafter.cross_problem_tokens",
    "task.slots": "task.max_num_seqs",
    "task.most": "task.max_tokens",
}
# A task or setting that is gone, as on the command line -> what does its work now.
GONE = {
    "task=bench_rewards": "`make pytest ARGS=tests/rewards/test_whole_sets.py` does this now",
    "task=calibrate_torch": "task=calibrate task.shape=8b times random weights of a model's shape, in the real engine",
    "task.profile": "`python -m cProfile run.py task=force ...` profiles the trainer's process",
    "task.engine_run": "experiment=das_fig2, das_fig10 and das_fig12 show the numbers of the real engine",
}


def renamed(override: str) -> str | None:
    """The new name of the key in `override` (KEY=VALUE), or None if the key has not changed its name."""
    key = override.lstrip("+~").split("=", 1)[0]
    return RENAMED.get(key.removeprefix("vary."))


def gone(override: str) -> str | None:
    """What does the work of a task or setting that is gone, or None if `override` names none."""
    return GONE.get(override, GONE.get(override.lstrip("+~").split("=", 1)[0]))


def with_new_names(config: DictConfig) -> DictConfig:
    """The config of an earlier run, in which settings may still have old names, with the present names."""
    translated = config.copy()
    with open_dict(translated):
        for old, new in RENAMED.items():
            group, _, key = old.rpartition(".")
            node = OmegaConf.select(translated, group)
            if isinstance(node, DictConfig) and key in node:
                OmegaConf.update(translated, new, node.pop(key), force_add=True)
    return translated
