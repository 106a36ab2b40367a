"""task=advise: drafters that are models, at the acceptance that the task gives. They need lengths only, no text."""

from dataclasses import replace

import numpy as np
from omegaconf import DictConfig

from das.replay.cluster import Step
from das.replay.engine import PlainEngine
from das.replay.hardware import HEAD_PASS, TARGET_REQUEST, VERIFY_REQUEST, W4_PASS, W4_REQUEST
from das.replay.profile_engine import ModelDrafter, Profile, ProfileEngine, constant_rate
from das.replay.scale import CostScaled
from das.replay.workload import workload
from experiments.run.errors import UserError
from experiments.tasks.advise.case import Case


def model_steps(task: DictConfig, case: Case) -> tuple[list[Step], dict[str, list[list[Step]]]]:
    """A step without speculation, and of each drafter one as expected, one cheaper, one dearer: a whole engine's
    requests, their lengths drawn from those of the last step."""
    requests = round(len(case.works[-1]) * case.scale)
    lengths = np.random.default_rng(0).choice(case.works[-1].lengths, requests)
    whole = workload([str(i) for i in range(requests)], [np.zeros(n, np.int32) for n in lengths], int(task.prompt))
    full = replace(case, works=[whole], scale=1.0)
    none = full.simulate(PlainEngine(full.times(), full.slots))
    found: dict[str, list[list[Step]]] = {}
    for priced in (full, full.cheaper(), full.dearer()):
        for name, model in models(task, priced).items():
            steps = priced.simulate(ProfileEngine(priced.times(), full.slots, model, 0))
            found.setdefault(name, []).append(steps)
    return none, found


def models(task: DictConfig, case: Case) -> dict[str, ModelDrafter]:
    """At the given acceptance. A draft pass costs a share of a plain one; a 4-bit copy's verification what was fitted
    for it, unless the form has that."""
    times = case.times()
    has_it = isinstance(case.form, CostScaled) and case.form.token > 0
    w4_verify = 0.0 if has_it else VERIFY_REQUEST - TARGET_REQUEST

    def plain(live: float, context: float) -> float:
        return times.target(int(live), 0, int(context))

    def model(
        profile: Profile, pass_share: float, draft_request: float = 0.0, verify_request: float = 0.0
    ) -> ModelDrafter:
        gamma = len(profile.rates)
        return ModelDrafter(
            profile,
            draft=lambda live, context: pass_share * plain(live, context) + draft_request * live,
            verify=lambda live, context: (
                times.target(int(live), gamma * int(live), int(context)) + verify_request * live
            ),
            pays_from=1.05,
        )

    try:
        w4 = Profile((float(task.w4_rate),) * int(task.w4_tokens))
        return {
            "w4": model(w4, W4_PASS, W4_REQUEST, w4_verify),
            "eagle": model(constant_rate(float(task.eagle_tau), int(task.eagle_tokens)), HEAD_PASS),
            "mtp": model(Profile(tuple(map(float, task.mtp_rates))), HEAD_PASS),
        }
    except ValueError as error:
        raise UserError(str(error)) from error
