"""Prepare what an arm's engine needs: its process, its settings, and the order of its requests."""

from pathlib import Path

from das.budget.lengths import LongestFirst
from das.drafter.saved import read_history
from das.engine.install import install
from das.engine.settings import EngineSettings
from experiments.arm.models import check_history, draft_model_directory
from experiments.run.environment import set_environment
from experiments.run.errors import UserError, reading
from experiments.run.run_folder import own_file
from experiments.settings.config import RunConfig


def prepare_process(config: RunConfig) -> None:
    """Set threads and environment for the engine, and patch vLLM unless the arm runs unmodified vLLM.

    Call it before vLLM or TRL is imported.
    """
    set_environment(config.engine.threads)
    if config.arm.row.keyed:
        install(config.engine.exact)


def engine_settings(config: RunConfig, policy: str) -> EngineSettings:
    """Make the settings of the arm's engine. policy: directory or hub id.

    Raises UserError with a one-line message if a setting of drafter, budget or engine is impossible, or if the history
    file is missing, damaged or of another policy.
    """
    drafter = dict(config.drafter.options)
    if config.drafter.warm is not None:
        drafter["warm"] = str(own_file(Path(config.drafter.warm)))
    budget = config.arm.budget or config.budget
    engine = dict(config.engine.settings)
    engine["extra"] = {"load_format": "safetensors", **engine.get("extra", {})}  # vLLM would also take pickles
    speculative = dict(config.arm.speculative)
    if config.arm.row.model == "draft model":
        speculative["model"] = draft_model_directory(config)
    try:
        settings = EngineSettings(
            model=policy,
            method=config.arm.method,
            seed=config.seed,
            drafter=drafter,
            budget=budget,
            speculative=speculative,
            self_draft=config.arm.self_draft,
            **engine,
        )
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error
    if config.arm.row.proposes and config.drafter.warm is not None:
        with reading(Path(drafter["warm"]), "drafter.warm"):
            read_history(Path(drafter["warm"]))
            check_history(Path(drafter["warm"]), policy)
    return settings


def without_distributions(config: RunConfig) -> str:
    """Return a line if the arm's history file holds tokens only although its drafter remembers distributions; else "".

    Raises UserError if the history file is missing or damaged.
    """
    drafter = config.drafter
    if not config.arm.row.history or drafter.options.get("remember") != "distributions" or drafter.warm is None:
        return ""
    with reading(Path(drafter.warm), "drafter.warm"):
        texts = read_history(Path(drafter.warm)).texts
    if not texts or texts[0].remembered is not None:
        return ""
    return f"{config.arm.name}: {drafter.warm} holds no distributions: it is drafted from as from tokens"


def make_schedule(name: str) -> LongestFirst | None:
    """Return the order in which the engine gets requests; None for the given order. name: longest_first or given."""
    return LongestFirst() if name == "longest_first" else None
