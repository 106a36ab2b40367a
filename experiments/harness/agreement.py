"""Compare the verifier's tokens with the softmax (level 1), and plain responses with drafted ones (level 2)."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

LISTED = 20  # number of largest logits that are compared at each position, beside the emitted token's
VOCAB, DRAFT = 64, 4  # level 1: tokens in the vocabulary, drafted tokens of a request
REQUESTS = 1000  # level 1: requests in a pass
UNLIKELY = 1e-4  # level 1: a p-value below this means that the distributions differ


def distribution(draws: int) -> dict[str, Any]:
    """Do level 1: let the verifier emit at least `draws` tokens for fixed logits, and test whether they follow the
    softmax.

    In a third of the requests, drafted tokens come from the softmax itself; in a third they are always the likeliest
    token, and in a third always the least likely one. Returns the number of draws, the p-value and the device.
    """
    import torch
    from vllm import SamplingParams

    from experiments.harness.plain_batch import PlainRunner

    device = "cuda" if torch.cuda.is_available() else "cpu"
    requests = [SamplingParams(seed=i, temperature=1.0) for i in range(REQUESTS)]
    runner = PlainRunner(requests, VOCAB, DRAFT, device)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    probabilities = logits.double().softmax(0).numpy()
    rng = np.random.default_rng(0)
    counts = np.zeros(VOCAB, np.int64)
    while counts.sum() < draws:
        drafts = rng.choice(VOCAB, p=probabilities, size=(REQUESTS, DRAFT))
        drafts[1::3], drafts[2::3] = probabilities.argmax(), probabilities.argmin()
        rows = logits.to(device).repeat(REQUESTS * (DRAFT + 1), 1)
        tokens = runner.sample(rows, drafts.tolist()).sampled_token_ids.cpu().numpy()
        emitted = tokens >= 0
        counts += np.bincount(tokens[emitted], minlength=VOCAB)
        runner.emit(emitted.sum(1))
    return {"draws": int(counts.sum()), "p_value": chi_square_p(counts, probabilities), "device": device}


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p-value of Pearson's chi-square test: how likely counts as unusual as these are if `probabilities` are
    true.

    It is the upper tail Q(degrees of freedom / 2, statistic / 2) of the regularised incomplete gamma function.
    torch has that function, so no statistics package is needed.
    """
    import torch

    expected = probabilities * counts.sum()
    statistic = float((np.square(counts - expected) / expected).sum())
    half_freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def listed_response(output: Any) -> dict[str, Any]:
    """Convert a response for `sample_agreement`: token ids, and for each position {token: logit} of the largest logits.

    output: the RequestOutput of a vLLM engine that reports raw logits.
    """
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "logits": [{token: entry.logprob for token, entry in position.items()} for position in completion.logprobs],
    }


def sample_agreement(plain: Sequence[dict[str, Any]], drafted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count how far the responses without and with drafts agree, up to the first token that differs in each pair.

    plain, drafted: made by `listed_response`. Returns counts and the largest differences of logits.
    """
    tokens = agreeing = sequences = positions = equal = 0
    at_divergence, largest = [], 0.0
    for without, with_drafts in zip(plain, drafted, strict=True):
        pairs = zip(without["tokens"], with_drafts["tokens"], strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        same = without["tokens"] == with_drafts["tokens"]
        sequences += same
        tokens += max(len(without["tokens"]), len(with_drafts["tokens"]))
        agreeing += common
        # As long as the texts are equal, logits may only differ by the rounding of the kernels.
        difference = 0.0
        for i in range(min(common + 1, len(without["logits"]), len(with_drafts["logits"]))):
            difference = largest_difference(without["logits"][i], with_drafts["logits"][i])
            positions += 1
            equal += difference == 0.0
            largest = max(largest, difference)
        if not same:  # the last difference is at the first token that differs, or at the end of the shorter response
            at_divergence.append(difference)
    return {
        "tokens": tokens,
        "tokens_agreeing": agreeing,
        "sequences": len(plain),
        "sequences_agreeing": sequences,
        "positions": positions,
        "positions_with_equal_logits": equal,
        "largest_logit_difference": largest,
        "largest_logit_difference_at_first_divergence": max(at_divergence, default=None),
    }


def largest_difference(a: dict[int, float], b: dict[int, float]) -> float:
    """The largest difference between logits of the same token, over the tokens in both dicts; inf if there are none."""
    return max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=float("inf"))


def describe_distribution(measured: dict[str, Any]) -> str:
    """Return the line to print about level 1 of exactness: emitted tokens follow the softmax's distribution.

    measured: the result of `distribution`.
    """
    verdict = "agrees" if measured["p_value"] > UNLIKELY else "DIFFERS"
    return (
        f"level 1 distribution  {verdict}: chi-square p = {measured['p_value']:.3g} over {measured['draws']} draws, "
        f"{measured['device']}"
    )
