"""Compare the verifier's tokens with the softmax (level 1)."""

from typing import Any

import numpy as np

VOCAB, DRAFT = 64, 4  # tokens in the vocabulary, drafted tokens of a request
REQUESTS = 1000  # requests in a pass
UNLIKELY = 1e-4  # a p-value below this means that the distributions differ


def distribution(draws: int) -> dict[str, Any]:
    """Do level 1: let the verifier emit at least `draws` tokens for fixed logits, and test whether they follow the
    softmax.

    In a third of the requests, drafted tokens come from the softmax itself; in a third they are always the likeliest
    token, and in a third always the least likely one. Returns the number of draws, the p-value and the device.
    """
    import torch
    from vllm import SamplingParams

    from experiments.measure.plain_batch import PlainRunner

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


def describe_distribution(measured: dict[str, Any]) -> str:
    """Return the line to print about level 1 of exactness: emitted tokens follow the softmax's distribution.

    measured: the result of `distribution`.
    """
    verdict = "agrees" if measured["p_value"] > UNLIKELY else "DIFFERS"
    return (
        f"level 1 distribution  {verdict}: chi-square p = {measured['p_value']:.3g} over {measured['draws']} draws, "
        f"{measured['device']}"
    )
