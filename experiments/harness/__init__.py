"""The parts of experiments: arms that train or roll out on identical work, and the runs of an experiment.

config and validate read the settings and refuse impossible ones. policies, data, reward, engine and heads make the
parts of an arm. train_arm trains one, rollout_steps rolls one out. runs/ runs several arms in lock step or one by
one, and the experiments behind a figure. replays/ times arms on the same rollouts, those of recorded responses among
them, on engines and in the simulator. evaluation/ measures a policy. resume, failures and tracking resume a run, report
why it failed, and send it to W&B.
"""
