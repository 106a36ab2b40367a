"""The two engines of task=bench_budgets, each in its own process. Each rollout is for one workload and one budget
policy."""

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from das.errors import reason_of
from das.process import spawned
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.failures import expect, tell
from experiments.harness.rollout_steps import tokenized
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.settings.config import RunConfig, run_config
from experiments.small_policy.shapes import random_policy, shape_of

BASELINE = "none"  # label of the budget policy without speculation


@dataclass(frozen=True)
class Requests:
    """The numbers and lengths of the requests in each rollout of a workload."""

    live: int  # requests of a rollout, in groups of siblings
    siblings: int  # requests of each problem
    problems: int  # distinct problems; a pass over all of them is an epoch
    hopeless: bool  # no draft can be accepted: the weights are untrained, and each problem has a single request
    tail: float = 1.0  # length limit of a request / length limit of the request before it

    def longest(self, max_tokens: int) -> list[int]:
        """Return the length limit of each request's response, in tokens."""
        return [max(1, round(max_tokens * self.tail**i)) for i in range(self.live)]


def requests_of(config: RunConfig, live: int, hopeless: bool) -> Requests:
    """Return a workload with `live` requests per rollout. Raises UserError if they form no whole groups of siblings."""
    siblings = 1 if hopeless else int(config.trainer.num_generations)
    if live < 1 or live % siblings:
        raise UserError(f"task.live: {live} requests are no multiple of trainer.num_generations={siblings}")
    problems = live * int(config.task.steps) if hopeless else max(int(config.task.problems), live // siblings)
    return Requests(live, siblings, problems, hopeless, float(config.task.tail))


class Engines:
    """Two engines, each in its own process. One does not speculate. In the other, the budget policies take turns."""

    def __init__(self, arms: Mapping[str, DictConfig], policy: str, max_num_seqs: int, folder: Path) -> None:
        """Start both engines. arms: label of a budget policy -> config, with the baseline. Logs go to folder/arms."""
        self._folder = folder
        drafting = [label for label in arms if label != BASELINE]
        self._first = {"plain": BASELINE, "drafting": drafting[0]}
        self._pipes = {
            engine: _start({label: arms[label] for label in labels}, policy, max_num_seqs, folder / "arms" / engine)
            for engine, labels in (("plain", [BASELINE]), ("drafting", drafting))
        }

    def warm_up(self, requests: Requests) -> None:
        """Wait until both engines are built and have made a first rollout."""
        for engine, label in self._first.items():
            expect(self._pipes[engine], "ready", engine, self._folder)
            self.roll_out(label, "warm-up", requests, 0)

    def roll_out(
        self, label: str, workload: str, requests: Requests, step: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one rollout with the budget policy `label`. Returns its row of metrics, and a timeline of passes."""
        engine = "plain" if label == BASELINE else "drafting"
        tell(self._pipes[engine], (label, workload, requests, step))
        rolled: tuple[dict[str, Any], dict[str, Any]] = expect(self._pipes[engine], "rolled", engine, self._folder)
        return rolled

    def close(self) -> None:
        """End both engines."""
        for pipe in self._pipes.values():
            pipe.close()


def interleaved(
    engines: Engines, labels: Sequence[str], workloads: Mapping[str, Requests], steps: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Make all rollouts, and yield the result of `roll_out` for each: a row of metrics and a timeline. In every step of
    a workload, each policy makes one rollout.

    Each step begins with another policy. Raises RunFailed if the policies emitted different tokens.
    """
    for name, requests in workloads.items():
        for step in range(steps):
            turn = step % len(labels)
            rows = []
            for label in [*labels[turn:], *labels[:turn]]:
                rolled = engines.roll_out(label, name, requests, step)
                rows.append(rolled[0])
                yield rolled
            _check_same_tokens(rows)


def _check_same_tokens(rows: Sequence[dict[str, Any]]) -> None:
    digests = {row["arm"]: row["digest"] for row in rows}
    wrong = [arm for arm, digest in digests.items() if digest != digests[BASELINE]]
    if wrong:
        raise RunFailed(
            f"{', '.join(wrong)} emitted other tokens than {BASELINE}: python run.py task=audit shows where"
        )


def untrained(policy: str, folder: Path) -> str:
    """Write a model with the policy's architecture and tokenizer, but with random weights, into `folder`. Returns the
    model's path.

    The tokens that it samples are nearly uniform, so no drafted token is accepted.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy, trust_remote_code=False)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(policy, trust_remote_code=False).save_pretrained(folder)
    return str(folder)


def with_tokenizer(shape: str, policy: str, cache: Path) -> str:
    """Return the folder of a policy with random weights of this shape, and with the tokenizer of `policy`.

    shape: a name in experiments.small_policy.shapes. Raises UserError if it is unknown.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    folder = random_policy(shape, len(tokenizer), shape_of(shape).dtype, cache / "policies")
    if not (folder / "tokenizer_config.json").exists():
        tokenizer.save_pretrained(folder)
    return str(folder)


def _start(arms: Mapping[str, DictConfig], policy: str, max_num_seqs: int, folder: Path) -> Connection:
    containers = {label: OmegaConf.to_container(config, resolve=True) for label, config in arms.items()}
    return spawned(_engine_process, containers, policy, max_num_seqs, folder / "log.txt")[1]


def _engine_process(containers: dict[str, Any], policy: str, max_num_seqs: int, log: Path, pipe: Connection) -> None:
    """Serve one engine in this process until the pipe closes. Its output goes to the log; an error goes to the parent
    process."""
    with quiet_into(log):
        try:
            arms = {label: OmegaConf.create(container) for label, container in containers.items()}
            _serve(arms, policy, max_num_seqs, pipe)
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            traceback.print_exc()
            tell(pipe, ("error", f"{type(error).__name__}: {reason_of(error)[:400]}"))


def _serve(arms: dict[str, DictConfig], policy: str, max_num_seqs: int, pipe: Connection) -> None:
    """Build one engine for all budget policies. Then do the rollout for each (label, workload, requests, step) that
    comes through the pipe, and answer with its row of metrics.

    Every pair of workload and policy has a drafter and a history of its own.
    """
    first = next(iter(arms.values()))
    prepare_process(run_config(first))
    from vllm import SamplingParams

    from das.budget import longest_draft
    from das.engine.build import build_engine
    from das.engine.rollouts.rollout import RolloutRequest, request_seed, roll_out, rollout_row

    settings = {label: engine_settings(run_config(config), policy) for label, config in arms.items()}
    # An engine that is built for self-drafts and for the longest drafts can serve the other policies too.
    longest = max(settings.values(), key=lambda each: longest_draft(each.budget))
    method = next((each.method for each in settings.values() if each.row.self_drafts), longest.method)
    llm = build_engine(replace(longest, method=method), max_num_seqs=max_num_seqs)
    problems_of: dict[str, list[tuple[str, Any]]] = {}  # workload -> (problem id, prompt) of its epoch
    params = SamplingParams(temperature=first.trainer.temperature, max_tokens=first.trainer.max_completion_length)
    pipe.send(("ready", None))
    while True:
        label, workload, requests, step = pipe.recv()
        if label != BASELINE:
            llm.collective_rpc("das_use_proposer", args=(f"{workload} {label}", settings[label].das_options))
        llm.reset_prefix_cache()
        if workload not in problems_of:
            data = OmegaConf.merge(first, {"data": {"problems": requests.problems}})
            assert isinstance(data, DictConfig)
            problems_of[workload] = tokenized(run_config(data), policy)
        epoch, groups = problems_of[workload], requests.live // requests.siblings
        batch = [
            epoch[i % len(epoch)] for i in range(step * groups, (step + 1) * groups) for _ in range(requests.siblings)
        ]
        problems, prompts = zip(*batch, strict=True)
        seeds = [request_seed(first.seed, step, i) for i in range(len(prompts))]
        next_history_tick = (step + 1) * groups // len(epoch)
        _, rollout = roll_out(
            llm,
            RolloutRequest(prompts, params, problems, seeds, step, next_history_tick=next_history_tick),
            _cut(llm, requests.longest(first.trainer.max_completion_length)),
        )
        counts = {key: getattr(rollout.report, key) for key in ("live_sum", "drafted_steps")}
        digest = hashlib.sha256(repr(rollout.responses).encode()).hexdigest()
        row = {"arm": label, "workload": workload, "step": step + 1, "digest": digest, **counts, **rollout_row(rollout)}
        pipe.send(("rolled", (row, rollout.report.timeline())))


def _cut(llm: Any, longest: Sequence[int]) -> Callable[..., list[Any]]:
    """Return llm.generate, changed so that response i has at most longest[i] tokens."""

    def generate(prompts: Sequence[Any], parameters: Sequence[Any], use_tqdm: bool) -> list[Any]:
        for own, tokens in zip(parameters, longest, strict=True):
            own.max_tokens = tokens
        outputs: list[Any] = llm.generate(prompts, parameters, use_tqdm=use_tqdm)
        return outputs

    return generate
