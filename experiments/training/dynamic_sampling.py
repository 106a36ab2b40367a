"""Train each step on groups whose rewards differ (`trainer.dynamic_sampling`), as DAPO does (arXiv 2503.14476).

All responses to a problem (a group) may get the same reward. Then their advantages are 0, and the step learns nothing
from them. So the step draws further groups, until it has enough whose rewards differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from das.engine.rollouts.report import RolloutReport, added
from das.engine.rollouts.rollout import Rollout, rollout_row
from das.trl.lag import FinishedRollout, indexes_of_steps
from experiments.training.partial import OF_TRAINED
from experiments.training.step_row import mean_reward

if TYPE_CHECKING:
    from experiments.training.trainer import SpeculativeGRPOTrainer


class DynamicSampling:
    """Draws groups for a step until enough of them have rewards that differ, or until a limit.

    A draw is as large as a step. It is the next rollout of a training that draws once a step: the same rows of the data
    with the same seeds. So what is drawn depends on tokens and rewards only, and a resumed training needs no state but
    the number of rollouts, which the backend counts.
    """

    def __init__(self, trainer: "SpeculativeGRPOTrainer", further: int):
        """further: how often a step draws again, at most."""
        self.trainer = trainer
        self.further = further
        self.taken: FinishedRollout | None = None  # the part of the draws on which this step trains
        self.rewards: list[float | None] = []  # of the responses in it
        self._draw: FinishedRollout | None = None  # the newest draw of the running step
        self._row: dict[str, Any] = {}
        self._problems: Iterator[list[int]] | None = None  # indexes of the rows of the draws to come
        self._rows: list[dict[str, Any]] = []  # those of the newest draw

    def rows(self) -> list[dict[str, Any]]:
        """Draw. Returns the rows of the data set on which this step trains, one for each response."""
        siblings = self.trainer.num_generations
        wanted = self.trainer.args.generation_batch_size // siblings
        rows: list[dict[str, Any]] = []
        rewards: list[float | None] = []
        draws: list[FinishedRollout] = []
        self.taken = None
        while not draws or (len(differing(rewards, siblings)) < wanted and len(draws) <= self.further):
            rewards += self._judged_draw()
            rows += self._rows
            assert self._draw is not None
            draws.append(self._draw)
        differ = differing(rewards, siblings)
        flat = [group for group in range(len(rows) // siblings) if group not in differ]
        chosen = sorted([*differ, *flat][:wanted])
        places = [group * siblings + sibling for group in chosen for sibling in range(siblings)]
        whole = one_after_another(draws, self.trainer.state.global_step)
        self.taken, self.rewards = whole.part(places), [rewards[place] for place in places]
        self._row = self._noted(whole.rollout, rewards, chosen, max(0, wanted - len(differ)))
        return [rows[place] for place in places]

    def take(self, prompt_ids: list[list[int]]) -> FinishedRollout:
        """Return the responses that TRL asks for: while `rows` runs those of a new draw, afterwards those on which the
        step trains. prompt_ids: the prompts' token ids."""
        if self.taken is not None:
            assert self.taken.prompts == prompt_ids
            return self.taken
        trainer, generation = self.trainer, self.trainer.vllm_generation
        new_weights = trainer._last_loaded_step != trainer.state.global_step  # TRL's: when the engine got its weights
        trainer._last_loaded_step = trainer.state.global_step
        self._draw = generation.submit(trainer, self._rows, prompt_ids, generation.rollouts, new_weights).result()
        return self._draw

    def row(self) -> dict[str, Any]:
        """Return the columns of a step's metrics that are other than without further draws. Costs are those of all
        draws; lengths are those of the trained responses."""
        return self._row

    def wait(self) -> None:
        """Do nothing: no rollout runs while the policy trains."""

    def save(self, folder: Path) -> None:
        """Do nothing: the backend's state says how many draws there were."""

    def resume(self, folder: Path, step: int) -> None:
        """Do nothing: the backend's state says how many draws there were."""

    def _judged_draw(self) -> list[float | None]:
        """Draw once. Returns the rewards of the draw, one for each response."""
        trainer = self.trainer
        if self._problems is None:
            self._problems = islice(indexes_of_steps(trainer), trainer.vllm_generation.rollouts, None)
        self._rows = [trainer.train_dataset[index] for index in next(self._problems)]
        prompts = [row["prompt"] for row in self._rows]
        _, responses, _, conversations, *_ = trainer._generate(prompts)  # TRL's; it calls `take`
        trainer._calculate_rewards(self._rows, prompts, conversations, responses)
        return trainer.rewards

    def _noted(
        self, whole: Rollout, rewards: Sequence[float | None], chosen: Sequence[int], flat: int
    ) -> dict[str, Any]:
        """Return the step's columns. rewards: of all draws. chosen: the trained groups. flat: how many of these have
        rewards that do not differ."""
        assert self.taken is not None
        trainer, trained, wanted = self.trainer, rollout_row(self.taken.rollout), len(chosen)
        groups, of_epoch = len(rewards) // trainer.num_generations, len(trainer.train_dataset) // wanted
        counts = {"draws": groups // wanted, "groups": groups, "dropped": groups - wanted, "flat": flat}
        counts["trained_tokens"] = self.taken.rollout.tokens
        row = rollout_row(whole) | {name: trained[name] for name in OF_TRAINED}
        row["epoch"] = (trainer.vllm_generation.rollouts - 1) // max(1, of_epoch)
        row["dynamic_sampling"] = {**counts, "drawn_reward": mean_reward(rewards)}
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
