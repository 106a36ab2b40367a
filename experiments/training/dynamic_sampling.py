"""Train each step on groups whose rewards differ (`trainer.dynamic_sampling`), as DAPO does (arXiv 2503.14476).

All responses to a problem (a group) may get the same reward. Then their advantages are 0, and the step learns nothing
from them. So the step draws further groups, until it has enough whose rewards differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from das.engine.rollouts.report import RolloutReport, added
from das.engine.rollouts.rollout import Rollout
from das.trl.lag import indexes_of_steps
from das.trl.step_rollouts import FinishedRollout, Rows, StepRollouts
from experiments.training.merge import part
from experiments.training.step_row import mean_reward, of_chosen


class DynamicSampling(StepRollouts):
    """Draws groups for a step until enough of them have rewards that differ, or until a limit.

    A draw is as large as a step. It is the next rollout of a training that draws once a step: the same rows of the data
    with the same seeds. So what is drawn depends on tokens and rewards only, and a resumed training needs no state but
    the number of rollouts, which the backend counts.
    """

    def __init__(self, trainer: Any, further: int, judge: Callable[[Rows], list[float | None]]):
        """further: how often a step draws again, at most. judge: returns the rewards of the responses in `taken`, to
        these rows."""
        super().__init__(trainer)
        self.further = further
        self._judge = judge
        self._columns: dict[str, Any] = {}
        self._problems: Iterator[list[int]] | None = None  # indexes of the rows of the draws to come

    def rows(self, drawn: Rows) -> Rows:
        """Draw. Returns the rows of the data set on which this step trains."""
        trainer, generation = self.trainer, self.trainer.vllm_generation
        siblings = trainer.num_generations
        wanted = trainer.args.generation_batch_size // siblings
        if self._problems is None:
            self._problems = islice(indexes_of_steps(trainer), generation.rollouts, None)
        rows: Rows = []
        rewards: list[float | None] = []
        draws: list[FinishedRollout] = []
        while not draws or (len(differing(rewards, siblings)) < wanted and len(draws) <= self.further):
            of_draw = [trainer.train_dataset[index] for index in next(self._problems)]
            self.taken = generation.submit(trainer, of_draw, generation.rollouts).result()
            draws.append(self.taken)
            rows += of_draw
            rewards += self._judge(of_draw)
        differ = differing(rewards, siblings)
        flat = [group for group in range(len(rows) // siblings) if group not in differ]
        chosen = sorted([*differ, *flat][:wanted])
        places = [group * siblings + sibling for group in chosen for sibling in range(siblings)]
        whole = replace(one_after_another(draws, trainer.state.global_step), rewards=rewards)
        self.taken = part(whole, places)
        self._columns = self._noted(whole, self.taken.rollout, wanted, max(0, wanted - len(differ)))
        return [rows[place] for place in places]

    def columns(self) -> dict[str, Any]:
        """See StepRollouts. Costs are those of all draws."""
        return self._columns

    def _noted(self, whole: FinishedRollout, trained: Rollout, wanted: int, flat: int) -> dict[str, Any]:
        """Return the step's columns. whole: all draws. trained: the part on which the step trains. wanted: its groups.
        flat: how many of these have rewards that do not differ."""
        trainer = self.trainer
        groups, of_epoch = len(whole.rewards) // trainer.num_generations, len(trainer.train_dataset) // wanted
        counts = {"draws": groups // wanted, "groups": groups, "dropped": groups - wanted, "flat": flat}
        counts["trained_tokens"] = trained.tokens
        row = of_chosen(whole.rollout, trained)
        row["epoch"] = (trainer.vllm_generation.rollouts - 1) // max(1, of_epoch)
        row["dynamic_sampling"] = {**counts, "drawn_reward": mean_reward(whole.rewards)}
        if flat:
            row["alarms"].append(
                f"the rewards of {flat} of {wanted} trained groups are equal after {counts['draws']} draws, so they "
                "teach nothing: raise trainer.dynamic_sampling or choose other problems"
            )
        return row


def differing(rewards: Sequence[float | None], siblings: int) -> list[int]:
    """Returns the groups whose rewards differ. rewards: of the responses of all groups; None: a response without one
    teaches nothing. siblings: responses a group."""
    groups = [rewards[start : start + siblings] for start in range(0, len(rewards), siblings)]
    return [group for group, own in enumerate(groups) if len({reward for reward in own if reward is not None}) > 1]


def one_after_another(draws: Sequence[FinishedRollout], step: int) -> FinishedRollout:
    """Make one rollout of several with the same weights, of which each began when the one before was over. Times and
    counts are added. step: the training step."""
    requests, report, began_s = [], RolloutReport(), 0.0
    for draw in draws:
        own = draw.rollout.report
        requests += [
            replace(cost, first_s=began_s + cost.first_s, last_s=began_s + cost.last_s)
            for cost in draw.rollout.requests
        ]
        report = replace(
            added(report, replace(own, step_time_s=[began_s + time_s for time_s in own.step_time_s])),
            history_tokens=own.history_tokens,
            calibration_error=own.calibration_error,
            draft_scale=own.draft_scale,
        )
        began_s += draw.rollout.rollout_s
    rollouts = [draw.rollout for draw in draws]
    whole = Rollout(
        step=step,
        problems=[problem for rollout in rollouts for problem in rollout.problems],
        responses=[response for rollout in rollouts for response in rollout.responses],
        finish_reasons=[reason for rollout in rollouts for reason in rollout.finish_reasons],
        requests=requests,
        rollout_s=began_s,
        report=report,
    )
    return FinishedRollout(
        whole,
        [logprobs for draw in draws for logprobs in draw.logprobs],
        [prompt for draw in draws for prompt in draw.prompts],
        draws[0].weights,
        draws[0].sync,
    )
