"""task=advise: simulate drafters that are models, with and without the history drafter beside them.

The acceptance of their tokens is published, measured on our small policy, or given by the user.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.models.hybrid import Hybrid
from das.replay.cluster import Step
from das.replay.engine import PlainEngine
from das.replay.text_engine import TextEngine
from das.replay.workload import workload
from experiments.recorded.model_profiles import Acceptance, read_profiles
from experiments.replay.hardware import HEAD_PASS, TARGET_REQUEST, VERIFY_REQUEST, W4_PASS, W4_REQUEST, W8_PASS
from experiments.replay.model_on_text import CopyOnText, DraftPass
from experiments.replay.profile_engine import Profile, ProfiledDrafter, ProfileEngine, constant_rate
from experiments.run.errors import UserError
from experiments.tasks.advise.case import MARGINAL, Case

# For each value of task.acceptance: arm -> name of its acceptance profile. MTP was not measured on our policy.
PROFILES = {
    "published": {"w8": "w8_published", "w4": "w4_published", "eagle": "eagle3_published", "mtp": "mtp_published"},
    "measured": {"w8": "w8", "w4": "w4", "eagle": "eagle3", "mtp": "mtp_published"},
}
PASSES = {"w8": W8_PASS, "w4": W4_PASS, "eagle": HEAD_PASS, "mtp": HEAD_PASS}  # draft pass / plain pass
HYBRID = "das + w4"  # the 4-bit copy beside the history, as in arm das_self
MOST_PASSES = 4  # draft passes of a copy of the policy before each pass of the policy, as in arm das_self


def acceptances(task: Any) -> dict[str, Acceptance]:
    """Return drafter -> its acceptance. Numbers that the user gives replace known ones. Raises UserError for bad
    numbers."""
    known = read_profiles()
    chosen = {arm: known[name] for arm, name in PROFILES[str(task.acceptance)].items()}
    own: dict[str, tuple[float, ...]] = {
        arm: (float(rate),) for arm, rate in (("w8", task.w8_rate), ("w4", task.w4_rate)) if rate is not None
    }
    try:
        if task.eagle_tau is not None:
            own["eagle"] = constant_rate(float(task.eagle_tau), int(task.eagle_tokens)).rates
        if task.mtp_rates is not None:
            own["mtp"] = tuple(map(float, task.mtp_rates))
        for rates in own.values():
            Profile(rates)
    except ValueError as error:
        raise UserError(str(error)) from error
    given = {arm: Acceptance(arm, "given", "your numbers", rates, "settings", "", {}) for arm, rates in own.items()}
    return chosen | given


def hybrid_steps(task: Any, case: Case) -> list[list[Step]]:
    """Simulate the sampled steps with the hybrid. Returns three lists of steps: as expected, if drafted tokens are
    cheaper, and if they are dearer."""
    return [_hybrid(task, priced) for priced in (case, case.cheaper(), case.dearer())]


def _hybrid(task: Any, case: Case) -> list[Step]:
    times, budget = case.times(), make_budget(MARGINAL)
    copy = CopyOnText(acceptances(task)["w4"].rates, DraftPass(times.form, W4_PASS, W4_REQUEST * case.scale))
    hybrid, room = Hybrid(copy, MOST_PASSES, budget.worth), case.simulated_max_num_seqs
    return case.simulate(TextEngine(times, room, HistoryDrafter(), budget, case.max_tokens, hybrid=hybrid))


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
    none = unscaled.simulate(PlainEngine(unscaled.times(), unscaled.max_num_seqs))
    steps_of: dict[str, list[list[Step]]] = {}
    for priced in (unscaled, unscaled.cheaper(), unscaled.dearer()):
        for name, model in models(task, priced).items():
            steps = priced.simulate(ProfileEngine(priced.times(), unscaled.max_num_seqs, model, 0))
            steps_of.setdefault(name, []).append(steps)
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

    def model(
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

    accepted = acceptances(task)
    tokens = {"w8": task.copy_tokens, "w4": task.copy_tokens, "eagle": task.eagle_tokens, "mtp": task.mtp_tokens}
    return {
        arm: model(
            acceptance.profile(int(tokens[arm])),
            PASSES[arm],
            *((W4_REQUEST, w4_verify) if arm in ("w8", "w4") else ()),
        )
        for arm, acceptance in accepted.items()
    }
