"""Timed passes made from known constants."""

import numpy as np

from experiments.simulate.times import SHARE, Drafting, Form, Passes

DRAFTING = Drafting(base=5e-3, row=1e-4, drafting=SHARE * 5e-3, token=5e-5)


def made_passes(form: Form, count: int, noise: float, interrupted: float = 0.0) -> Passes:
    """Passes of 1 to 64 requests with 0 to 7 drafted tokens each. Interrupted ones take 5 to 50 times as long."""
    rng = np.random.default_rng(0)
    live = rng.integers(1, 65, count).astype(float)
    tokens = live * rng.integers(1, 9, count)
    context = live * rng.integers(50, 500, count)
    seconds = form.predict(live, tokens, context) * rng.uniform(1 - noise, 1 + noise, count)
    seconds *= np.where(rng.random(count) < interrupted, rng.uniform(5, 50, count), 1)
    return Passes(live, tokens, context, seconds)
