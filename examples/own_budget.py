"""A budget of your own, tried in the simulator: python -m examples.own_budget

No engine and no model are needed. To use it in one: `das.speculate(budget={"name": "own_budget:LikelyTail"})` in a TRL
script, or `das.engine_arguments(budget="own_budget:LikelyTail")` with vLLM; the other settings are its arguments.
"""

from collections.abc import Sequence

import numpy as np

from das.budget import BudgetPolicy, LiveRequest, make_budget
from das.drafter import Drafts, HistoryDrafter


class LikelyTail(BudgetPolicy):
    """Drafts only while few requests are live, and only as far as a draft is likely to be accepted as a whole."""

    def __init__(self, tokens: int = 16, most_live: int = 16, likely: float = 0.3):
        self.max_draft_tokens = tokens
        self.most_live = most_live
        self.likely = likely

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        """The longest draft worth looking for, for each request."""
        return [self.max_draft_tokens if len(live) <= self.most_live else 0] * len(live)

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        """How many tokens of each draft are verified."""
        drafted = np.arange(drafts.probs.shape[1]) < drafts.counts[:, None]  # [requests, tokens]
        accepted_so_far = np.cumprod(np.where(drafted, drafts.probs, 0.0), axis=1)
        return (accepted_so_far >= self.likely).sum(axis=1).tolist()


if __name__ == "__main__":
    # The simulator is the harness's: a user's process that only names the class does not need it.
    from experiments.simulate.engine import simulate_rollout
    from experiments.simulate.text_engine import TextEngine
    from experiments.simulate.times import Affine, Times
    from experiments.simulate.workload import Workload, workload

    def rollout(random: np.random.Generator, texts: Sequence[np.ndarray]) -> Workload:
        """Four responses to each of eight problems: parts of the problem's text, of long-tailed length, one token in 25
        another one."""
        problems, responses = [], []
        for problem, text in enumerate(texts):
            for _ in range(4):
                length = int(np.clip(random.lognormal(4.5, 0.8), 10, len(text)))
                changed = random.random(length) < 0.04
                problems.append(str(problem))
                responses.append(np.where(changed, random.integers(0, 1000, length), text[:length]))
        return workload(problems, responses)

    random = np.random.default_rng(0)
    texts = [random.integers(0, 1000, 1024) for _ in range(8)]
    epochs = [rollout(random, texts) for _ in range(4)]
    times = Times(Affine(8e-3, 4e-4))  # seconds: a pass, and each of its tokens
    budgets = {name: make_budget({"name": name}) for name in ("none", "fixed", "unlimited")}
    for name, budget in {**budgets, "likely_tail": LikelyTail()}.items():
        engine = TextEngine(times, max_num_seqs=32, drafter=HistoryDrafter(), budget=budget, max_tokens=1024)
        steps = [
            simulate_rollout(work, [engine], [range(len(work))], epoch) for epoch, work in enumerate(epochs, start=1)
        ]
        costs = "".join(f"   {step.rollout_s:.2f} s, {step.tokens_per_pass:.2f} tokens a pass" for step in steps)
        print(f"{name:12s}{costs}")
