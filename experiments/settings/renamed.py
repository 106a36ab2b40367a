"""Names of settings and tasks that were renamed or removed. A user who types one gets a line that says what to
use now."""

from omegaconf import DictConfig, OmegaConf, open_dict

# Old key -> new key, both as the user types them on the command line.
RENAMED = {
    "drafter.others": "drafter.cross_problem_tokens",
    "task.slots": "task.max_num_seqs",
    "task.most": "task.max_tokens",
}
# A removed task or setting, as the user typed it -> what to use in its place.
GONE = {
    "task=bench_rewards": "`make pytest ARGS=tests/rewards/test_whole_sets.py` judges whole problem sets",
    "task=bench_sampler": "`python run.py arms=[none,stock]` compares keyed sampling with vLLM as it comes",
    "task=policy": "task=evaluate measures a policy, `python -m experiments.small_policy.train` makes a small one",
    "task=calibrate_torch": "task=calibrate task.shape=8b times random weights of a model's shape, in the real engine",
    "task.profile": "`python -m cProfile run.py task=force ...` profiles the trainer's process",
    **{
        f"experiment=arm_{arm}": f"`python run.py task=train arm={arm} setting=maths_small` trains one arm alone"
        for arm in ("none", "das", "das_fixed", "das_unlimited", "ngram", "suffix")
    },
    "arm=draft_model_online": "arm=draft_model drafts with the same model; eagle3_online has a head that learns",
    "arm=mtp_online": "arm=mtp drafts with the same layer; eagle3_online has a head that learns",
    "budget.makespan": "leave it out: requests weighed by their chance to finish last took 1 to 4 % longer",
    "budget.ramp": "leave it out: measured times alone turn the toggle on",
    "budget.one_way": "leave it out: once on, the toggle stays on while drafts do not lose time",
    "task.crafted": "`make pytest ARGS=tests/drafter/test_breakage.py` does this now",
    "drafter.scope": "leave it out; with drafter.window=0 drafter.cross_problem_tokens=0 siblings and own text draft",
    "experiment=real_policy": "`python run.py setting=real_policy arms=[none,suffix,das]` compares arms on SmolLM2",
    "experiment=das_fig6": "`task=reproduce paper=das` replays DAS Fig 6 on recorded text",
    "task.engine_run": "experiment=das_fig2, das_fig10 and das_fig12 show the numbers of the real engine",
}


def renamed(override: str) -> str | None:
    """Return the new name of the key in `override` (KEY=VALUE), or None if the key was not renamed."""
    key = override.lstrip("+~").split("=", 1)[0]
    return RENAMED.get(key.removeprefix("vary."))


def gone(override: str) -> str | None:
    """Return advice in place of the removed task or setting that `override` names; None if it names none of these."""
    return GONE.get(override, GONE.get(override.lstrip("+~").removeprefix("vary.").split("=", 1)[0]))


def with_new_names(config: DictConfig) -> DictConfig:
    """Return the config of an earlier run with old names of settings replaced by their present names."""
    translated = config.copy()
    with open_dict(translated):
        for old, new in RENAMED.items():
            group, _, key = old.rpartition(".")
            node = OmegaConf.select(translated, group)
            if isinstance(node, DictConfig) and key in node:
                OmegaConf.update(translated, new, node.pop(key), force_add=True)
    return translated
