"""task=force: make the real engine emit recorded responses, and measure how long each arm takes for them.

The weights are random, of any shape. The verifier emits the recorded tokens (das/verify/forced.py). The arm stock uses
vLLM's own sampler: it emits the recorded number of tokens but not the recorded tokens, and spends no time on forcing
them. In every epoch all arms roll out the same responses, one arm after the other. The drafters keep a separate history
of past responses for each number of live requests.

result.json:
forced.{tokens, equal}: for all arms but stock, how many tokens were emitted, and whether all are the recorded ones.
arms.NAME.{rollout_s, tokens_per_pass, drafted, accepted}.
variant_of.NAME: the arm that a variant (+vary) replaces.
ratio_to_none.NAME.{rollout_s, processor_s}.{overall, by_live}; and ratio_to_stock if the arm stock was run. processor_s
is the CPU time of the engine's process. It says more than rollout_s if other programs use the cores, too.
replay_error.NAME: relative error of the simulator's rollout times. It is fitted to odd epochs and judged on even ones.
ratio_at_row_price.PRICE.NAME.{overall, by_live}: simulated, not measured: the ratio to none if every row of a pass (a
request or a drafted token) cost PRICE times its measured time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis.force_table import force_table
from analysis.task_figures import force_figure
from das.engine.build import EngineSettings
from das.engine.methods import METHODS, find_method
from experiments.harness.arm_configs import arm_overrides, varies
from experiments.harness.engine import engine_settings
from experiments.harness.replays.forced_engines import ForcedRollout
from experiments.harness.replays.forced_replay import Results, replay
from experiments.harness.replays.recorded_arms import tokens_only
from experiments.harness.replays.timed import BASELINE, TimedEngines, Work
from experiments.recorded.forced_works import forced_works, with_end
from experiments.run.errors import UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config
from experiments.simulate.workload import Workload
from experiments.small_policy.shapes import Shape, random_policy, shape_of, weightless_policy


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Roll out all responses with all arms, then simulate them. Prints a table; writes result.json and a figure."""
    task = config.task
    path = check(task)
    shape = shape_of(task.shape)
    check_live(shape, task)
    arms = arm_configs(config, shape, overrides)
    settings = {name: engine_settings(run_config(arm), "unnamed") for name, arm in arms.items()}
    live = [int(requests) for requests in task.live]
    cut = forced_works(path, live, int(task.siblings), int(task.epochs), int(task.tokens), int(task.prompt))
    works, end, vocabulary = with_end(cut, shape.vocabulary, path)
    progress = Progress(len(live) * int(task.epochs), len(arms))
    run_folder = RunFolder(Path(folder), config.resolved)
    dtype = settings[BASELINE].dtype if settings[BASELINE].dtype != "auto" else shape.dtype
    with quiet_into(Path(folder) / "log.txt"):
        make = random_policy if task.kv_gib is None else weightless_policy
        policy = make(task.shape, vocabulary, dtype, Path(config.cache) / "policies")
    longest = max(int(work.lengths.max()) for epochs in works.values() for work in epochs)
    sizes: dict[str, Any] = {"max_num_seqs": max(live), "max_model_len": int(task.prompt) + longest + 1}
    sizes["skip_tokenizer_init"] = True
    if task.kv_gib is not None:
        sizes |= {"load_format": "dummy", "kv_cache_memory_bytes": int(task.kv_gib * 2**30)}
    progress.note(
        f"{sum(len(work.tokens) for epochs in works.values() for work in epochs)} recorded tokens, longest response "
        f"{longest}, on random weights of shape {task.shape}; starting {', '.join(arms)}; logs in {folder}"
    )
    for name, arm_settings in settings.items():
        recorded = [work for epochs in works.values() for work in epochs]
        if arm_settings.row.proposes and (line := tokens_only(recorded, arm_settings.drafter)):
            progress.note(f"{name}: {line}")
    results: Results = {name: {} for name in arms}
    each_its_own = {name: {name: arm} for name, arm in arms.items()}
    with closing(TimedEngines(each_its_own, str(policy), sizes, Path(folder))) as engines:
        engines.ready()
        for work, arm, timed in engines.in_turns(all_rollouts(works, end)):
            run_folder.add_metrics(timed.row)
            progress.step(timed.row)
            results[arm][work.names["live"], work.names["epoch"]] = timed
    stock = next((name for name in arms if not settings[name].row.keyed), None)
    result = measured(results, live, stock) | replay(results, works, settings)
    varied_arm = varies(list(task.arms))
    result["variant_of"] = {name: varied_arm for name in arms if name not in task.arms}
    force_figure(result, Path(folder) / "force.png")
    progress.note(force_table(result))
    progress.note(f"result: {run_folder.write_result(result)}")


def check(task: Any) -> Path:
    """Check the task's settings and return the path of the recording. Raises UserError with a one-line message."""
    if task.rollouts is None:
        raise UserError("task.rollouts=PATH is missing: their form: experiments/simulate/rollouts.py")
    if BASELINE not in task.arms:
        raise UserError(f"task.arms={list(task.arms)}: {BASELINE} must be among them, all times are relative to it")
    if len(set(task.arms)) != len(task.arms):
        raise UserError(f"task.arms={list(task.arms)}: name each arm once")
    if not task.live:
        raise UserError("task.live=[]: name one or more numbers of requests")
    if not Path(task.rollouts).exists():
        raise UserError(f"task.rollouts={task.rollouts}: no such file or folder")
    return Path(task.rollouts)


def check_live(shape: Shape, task: Any) -> None:
    """Refuse more live requests than a CPU serves with weights of this shape. Raises UserError."""
    import torch  # here, because it takes a second to import

    if shape.cpu_live is not None and max(task.live) > shape.cpu_live and not torch.cuda.is_available():
        kept = [requests for requests in task.live if requests <= shape.cpu_live] or [shape.cpu_live]
        raise UserError(
            f"task.live={list(task.live)}: a CPU serves at most {shape.cpu_live} requests of shape {task.shape} at "
            f"once: set task.live=[{','.join(map(str, kept))}]"
        )


def arm_configs(config: RunConfig, shape: Shape, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """Return the config of every arm or variant. The weights have the shape's data type unless the user names another.

    Raises UserError for an arm that is unknown or drafts with a model, EngineError for an arm whose package is missing.
    """
    common = [f"engine.dtype={shape.dtype}", *(override for override in overrides if not override.startswith("arm="))]
    of_arms = arm_overrides(config, config.task.arms, common)
    arms = {name: compose_config(of_arm) for name, of_arm in of_arms.items()}
    for name, arm in arms.items():
        row = find_method(arm.arm.method)
        if not row.forced:
            raise UserError(
                f"task.arms: {name} drafts with a model, which cannot foresee recorded text; choose arms of "
                f"the methods {', '.join(row.name for row in METHODS.values() if row.forced)}"
            )
        if row.keyed:
            row.speculative(EngineSettings("", row.name, speculative=arm.arm.speculative))
    return arms


def all_rollouts(works: Mapping[int, Sequence[Workload]], end: int) -> Iterator[Work]:
    """Yield the rollouts that each arm does. They count from step 1.

    works: live requests -> the recorded responses of each epoch. end: the token that ends every response.
    """
    step = count(1)
    for live, epochs in works.items():
        for epoch, work in enumerate(epochs, 1):
            names = {"live": live, "epoch": epoch, "step": next(step)}
            yield Work(f"{live} live", names, ForcedRollout(work, end, live, epoch))


def measured(results: Results, live: Sequence[int], stock: str | None) -> dict[str, Any]:
    """Return the summed times and counts of each arm, and its times divided by the baseline's. live: the numbers of
    live requests. stock: name of the arm that runs unmodified vLLM; None if there is none."""

    def total(arm: str, key: str, requests: int | None = None) -> float:
        return float(sum(each.row[key] for (n, _), each in results[arm].items() if requests in (None, n)))

    def ratios(other: str) -> dict[str, Any]:
        return {
            arm: {
                key: {
                    "overall": total(arm, key) / total(other, key),
                    "by_live": {str(n): total(arm, key, n) / total(other, key, n) for n in live},
                }
                for key in ("rollout_s", "processor_s")
            }
            for arm in results
        }

    forced = [arm for arm in results if arm != stock]
    result = {
        "forced": {
            "tokens": sum(int(total(arm, "tokens")) for arm in forced),
            "equal": all(each.equal for arm in forced for each in results[arm].values()),
        },
        "arms": {
            arm: {
                "rollout_s": total(arm, "rollout_s"),
                "tokens_per_pass": total(arm, "tokens") / total(arm, "passes"),
                "drafted": int(total(arm, "drafted")),
                "accepted": int(total(arm, "accepted")),
                "by_live": {str(n): total(arm, "tokens", n) / total(arm, "passes", n) for n in live},
            }
            for arm in results
        },
        "ratio_to_none": ratios(BASELINE),
    }
    return result | ({} if stock is None else {"ratio_to_stock": ratios(stock)})
