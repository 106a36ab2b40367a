"""task=advise: simulate drafters that are models, with and without the history drafter beside them.

The acceptance of their tokens is published, measured on our small policy, or given by the user.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.run.errors import UserError
from experiments.simulate.arms import Arm, Copy
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.hardware import HEAD_PASS, TARGET_REQUEST, VERIFY_REQUEST, W4_PASS, W4_REQUEST, W8_PASS
from experiments.simulate.model_on_text import DraftPass
from experiments.simulate.model_profiles import Acceptance, read_profiles
from experiments.simulate.profile_engine import Profile, ProfiledDrafter, ProfileEngine, constant_rate
from experiments.simulate.workload import workload
from experiments.tasks.advise.case import Case

Rates = tuple[float, ...]


@dataclass(frozen=True)
class Model:
    """A drafter that is a model.

    published, measured: the names of its acceptance, for each value of task.acceptance. share: draft pass / plain pass.
    tokens: the setting with the length of its drafts. given: the user's own acceptance, or None. copy: of the policy in
    few bits, whose requests add their own time.
    """

    published: str
    measured: str
    share: float
    tokens: str
    given: Callable[[Any], Rates | None]
    copy: bool = False


def _given(setting: str) -> Callable[[Any], Rates | None]:
    """The user's rate of acceptance, or rates by position, in a setting of the task."""

    def read(task: Any) -> Rates | None:
        value = getattr(task, setting)
        return value if value is None else tuple(map(float, value if hasattr(value, "__iter__") else [value]))

    return read


def _given_tau(task: Any) -> Rates | None:
    tau = task.eagle_tau
    return None if tau is None else constant_rate(float(tau), int(task.eagle_tokens)).rates


MODELS = {
    "w8": Model("w8_published", "w8", W8_PASS, "copy_tokens", _given("w8_rate"), copy=True),
    "w4": Model("w4_published", "w4", W4_PASS, "copy_tokens", _given("w4_rate"), copy=True),
    "eagle": Model("eagle3_published", "eagle3", HEAD_PASS, "eagle_tokens", _given_tau),
    "mtp": Model("mtp_published", "mtp_published", HEAD_PASS, "mtp_tokens", _given("mtp_rates")),  # never measured here
}


def acceptances(task: Any) -> dict[str, Acceptance]:
    """Return drafter -> its acceptance. Numbers that the user gives replace known ones. Raises UserError for bad
    numbers."""
    known = read_profiles()
    chosen = {}
    for name, model in MODELS.items():
        chosen[name] = known[model.published if task.acceptance == "published" else model.measured]
        try:
            if (rates := model.given(task)) is not None:
                Profile(rates)
                chosen[name] = Acceptance(name, "given", "your numbers", rates, "settings", {})
        except ValueError as error:
            raise UserError(str(error)) from error
    return chosen


def copy_beside(task: Any, case: Case) -> Copy:
    """Return the 4-bit copy that drafts beside the history, as in arm das_self."""
    price = DraftPass(case.times().form, MODELS["w4"].share, W4_REQUEST * case.scale)
    return Copy(acceptances(task)["w4"].rates, price)


def model_steps(task: Any, case: Case) -> tuple[list[Step], dict[str, list[list[Step]]]]:
    """Simulate one step without speculation, and with each drafter that is a model.

    All requests of an engine are simulated; their lengths are drawn from those of the last recorded step. Returns the
    step without speculation, and for each drafter the step at the expected time of drafted tokens, if they are cheaper,
    and if they are dearer.
    """
    requests = round(len(case.works[-1]) * case.scale)
    lengths = np.random.default_rng(0).choice(case.works[-1].lengths, requests)
    problems = [str(i) for i in range(requests)]
    all_requests = workload(problems, [np.zeros(n, np.int32) for n in lengths], int(task.prompt))
    unscaled = replace(case, works=[all_requests], scale=1.0)
    none = unscaled.simulate(Arm()).steps
    steps_of: dict[str, list[list[Step]]] = {}
    for priced in (unscaled, unscaled.cheaper(), unscaled.dearer()):
        for name, model in models(task, priced).items():
            engine = ProfileEngine(priced.times(), unscaled.max_num_seqs, model, 0)
            step = simulate_rollout(all_requests, [engine], [range(requests)], 1)
            steps_of.setdefault(name, []).append([step])
    return none, steps_of


def models(task: Any, case: Case) -> dict[str, ProfiledDrafter]:
    """Return name -> drafter that is a model, with its acceptance and its times. Raises UserError for an impossible
    acceptance.

    A draft pass takes a share of the time of the policy's pass. To verify the drafts of a quantized copy takes the time
    that was fitted for a 4-bit copy, unless the times of the case contain that of verification.
    """
    times = case.times()
    w4_verify = 0.0 if case.derived else VERIFY_REQUEST - TARGET_REQUEST

    def plain(live: float, context: float) -> float:
        return times.target(int(live), 0, int(context))

    def drafter(
        profile: Profile, pass_share: float, draft_request: float = 0.0, verify_request: float = 0.0
    ) -> ProfiledDrafter:
        gamma = len(profile.rates)
        return ProfiledDrafter(
            profile,
            draft=lambda live, context: pass_share * plain(live, context) + draft_request * live,
            verify=lambda live, context: (
                times.target(int(live), gamma * int(live), int(context)) + verify_request * live
            ),
            pays_from=1.05,
        )

    return {
        name: drafter(
            acceptance.profile(int(getattr(task, MODELS[name].tokens))),
            MODELS[name].share,
            *((W4_REQUEST, w4_verify) if MODELS[name].copy else ()),
        )
        for name, acceptance in acceptances(task).items()
    }
