"""task=advise: drafters that are models, at the acceptance that the settings give. Only lengths matter to them."""

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
    """A step without speculation; and for each drafter the steps as expected, if drafts are cheaper, if dearer.

    All requests of an engine are simulated, with lengths drawn from those of the last step.
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


def models(task: DictConfig, case: Case) -> dict[str, ModelDrafter]:
    """Each drafter at its given acceptance. Raises UserError for an acceptance that cannot be.

    A draft pass costs a share of a plain pass. Verifying a 4-bit copy's drafts costs what was fitted for it, unless the
    case's form already contains that.
    """
    times = case.times()
    form_has_verification = isinstance(case.form, CostScaled) and case.form.token > 0
    w4_verify = 0.0 if form_has_verification else VERIFY_REQUEST - TARGET_REQUEST

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
