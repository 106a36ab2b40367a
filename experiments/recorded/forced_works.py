"""Choose recorded responses for forced rollouts, and cut them to the wanted number of tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.run.errors import UserError
from experiments.simulate.rollouts import sampled_responses_of
from experiments.simulate.workload import Sampling, Workload, workload

Recorded = tuple[str, np.ndarray, Sampling | None]  # problem, response, and how the response was sampled


def forced_works(
    path: Path, live: Sequence[int], siblings: int, epochs: int, tokens: int, prompt: int
) -> dict[int, list[Workload]]:
    """Return number of live requests -> the responses of each epoch.

    In each epoch a rollout has the next `siblings` responses to each of its problems. Its problems are the first ones
    with enough responses: as many as fill `live` requests, but at least one. If `live` is less than `siblings`, some
    siblings wait. Every response is cut to the same fraction of its length, so that all epochs together have about
    `tokens` tokens for each problem. Raises UserError if the recording has too few responses.
    """
    responses = sampled_responses_of(path)
    return {requests: _cut(_chosen(responses, requests, siblings, epochs, path), tokens, prompt) for requests in live}


def _chosen(
    responses: dict[str, list[tuple[np.ndarray, Sampling | None]]], live: int, group: int, epochs: int, path: Path
) -> list[list[Recorded]]:
    """Return the responses of each epoch."""
    if live > group and live % group:
        raise UserError(f"task.live: {live} requests are no multiple of task.siblings={group}")
    enough = {problem: rows for problem, rows in responses.items() if len(rows) >= group * epochs}
    wanted = max(1, live // group)
    if len(enough) < wanted:
        raise UserError(
            f"{path}: {len(enough)} problems have {group * epochs} responses, but task.live={live} needs {wanted}: "
            "lower task.epochs, task.siblings or task.live"
        )
    problems = list(enough)[:wanted]
    return [
        [(problem, *enough[problem][epoch * group + i]) for problem in problems for i in range(group)]
        for epoch in range(epochs)
    ]


def _cut(epochs: list[list[Recorded]], tokens: int, prompt: int) -> list[Workload]:
    total = sum(len(response) for epoch in epochs for _, response, _ in epoch)
    problems = len({problem for problem, _, _ in epochs[0]})
    fraction = min(1.0, tokens * problems / total)
    works = []
    for epoch in epochs:
        responses = [response[: max(1, round(len(response) * fraction))] for _, response, _ in epoch]
        sampling = [_fitted(each, len(cut)) for cut, (_, _, each) in zip(responses, epoch, strict=True)]
        works.append(workload([problem for problem, _, _ in epoch], responses, prompt, sampling))
    return works


def _fitted(sampling: Sampling | None, tokens: int) -> Sampling | None:
    """Return how a response was sampled that is cut, or filled up, to so many tokens."""
    return None if sampling is None else replace(sampling, distributions=sampling.distributions.fitted(tokens))


def with_end(
    works: dict[int, list[Workload]], vocabulary: int | None, path: Path
) -> tuple[dict[int, list[Workload]], int, int]:
    """Add an end token to every response. Returns the new works, the end token, and the size of the vocabulary.

    vocabulary: the size of the policy's vocabulary, whose last token becomes the end token. None: token ids are
    numbered anew without gaps, and the vocabulary is as large as they need; the noise of recorded ids is then lost, and
    with it how the responses were sampled. Raises UserError if recorded ids exceed the vocabulary.
    """
    used = np.unique(np.concatenate([work.tokens for epochs in works.values() for work in epochs]))
    if vocabulary is not None and used[-1] >= vocabulary - 1:
        raise UserError(
            f"{path} has token id {used[-1]}, but the policy has {vocabulary} tokens, and the last one ends responses: "
            "choose another task.shape"
        )
    end = len(used) if vocabulary is None else vocabulary - 1

    def ended(work: Workload) -> Workload:
        rows: Sequence[np.ndarray] = [work.response(i) for i in range(len(work))]
        sampling: Sequence[Sampling | None] = ()
        if vocabulary is None:
            rows = [np.searchsorted(used, row) for row in rows]
        else:
            sampling = [_within(work.sampling_of(i), row, vocabulary) for i, row in enumerate(rows)]
        return workload(work.problems, [np.append(row, end) for row in rows], work.prompt, sampling)

    size = vocabulary or -(-(end + 1) // 128) * 128  # vLLM pads vocabularies to a multiple of 64
    return {live: [ended(work) for work in epochs] for live, epochs in works.items()}, end, size


def _within(sampling: Sampling | None, response: np.ndarray, vocabulary: int) -> Sampling | None:
    """Return how a response was sampled, for this vocabulary and with an end token behind the response."""
    if sampling is None or sampling.seed is None:  # without noise a drafter does not use distributions
        return None
    known = sampling.distributions.within(response, vocabulary)
    return replace(sampling, distributions=known.fitted(len(response) + 1))
