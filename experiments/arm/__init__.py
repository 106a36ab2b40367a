"""One arm: its parts, its training, and what is refused, resumed, evaluated and reported on the way.

models, data, reward and engine make its parts; validate refuses impossible ones before. train_arm trains it, evaluation
measures its policy on held-out problems. resume goes on with a run, tracking sends it to W&B.
"""
