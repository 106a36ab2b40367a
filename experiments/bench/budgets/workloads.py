"""The workloads of task=bench_budgets, and the weights for them that are made here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.replays.timed import OwnRollout, Work
from experiments.harness.rollout_steps import tokenized
from experiments.run.errors import UserError
from experiments.settings.config import RunConfig
from experiments.small_policy.shapes import random_policy, shape_of


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


def rollouts(config: RunConfig, workloads: Mapping[str, Requests], steps: int, policy: str) -> Iterator[Work]:
    """Yield the rollouts of each workload. policy: its tokenizer is used."""
    longest = config.trainer.max_completion_length
    for name, requests in workloads.items():
        epoch = tokenized(config.with_problems(requests.problems), policy)
        groups = requests.live // requests.siblings
        for step in range(steps):
            asked = range(step * groups, (step + 1) * groups)
            batch = [epoch[i % len(epoch)] for i in asked for _ in range(requests.siblings)]
            problems, prompts = zip(*batch, strict=True)
            tick = (step + 1) * groups // len(epoch)
            rollout = OwnRollout(prompts, problems, requests.longest(longest), step, tick)
            yield Work(name, {"workload": name, "step": step + 1}, rollout)


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
