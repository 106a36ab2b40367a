"""The parts of experiments: arms that train or roll out on identical work, and the runs of an experiment.

config, validate: the settings as dataclasses, and what is refused. policies, data, reward, engine: what an arm is
made of. train_arm, rollout_steps: one arm. lock_step, one_by_one: several arms. resume, failures, tracking: how a run
is resumed, how it fails, how W&B records it. planned_runs: the runs behind a figure or table.
"""
