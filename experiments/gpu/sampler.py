"""The part `sampler` of task=check_gpu: the keyed sampler's kernels choose the CPU kernel's tokens, and emitted tokens
follow the policy's distribution (level 1)."""

from experiments.gpu.scale import Scale, Verdict

ROWS = (16, 144, 320, 768)  # of passes with 16 to 256 requests


def sampler(scale: Scale) -> Verdict:
    """Compare tokens, and the likeliest ones that drafters remember, for random, tied and masked logits."""
    import numpy as np
    import torch

    from das.verify.noise import keyed_argmax, likeliest
    from experiments.measure.agreement import UNLIKELY, describe_distribution, distribution

    vocabulary = scale.pick(151936, 2000)
    compared = differing = pairs_differing = 0
    for rows in scale.pick(ROWS, (1, 7)):
        logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 2
        logits[:, ::5] = -torch.inf
        logits[0, 1::97] = logits[0, -1] = 20.0  # ties, for a row without noise too
        keys = np.arange(rows) - 3, np.arange(rows) * 7, np.arange(rows) % 4 == 0
        on_device, few = logits.to(scale.pick("cuda", "cpu")), min(rows, 64)  # the CPU takes its time
        tokens = keyed_argmax(on_device, *keys)[:few].cpu()
        differing += int((keyed_argmax(logits[:few], *(key[:few] for key in keys)) != tokens).sum())
        pairs = likeliest(on_device, np.arange(rows))
        if scale.gpu:
            torch.cuda.synchronize()
        pairs_differing += int((likeliest(logits[:few], np.arange(few))[1:] != pairs[1:few]).sum())
        compared += few
        scale.note(rows=rows, tokens_differing=differing, pairs_differing=pairs_differing)
    level_1 = distribution(scale.pick(1_000_000, 20_000))
    scale.note(**level_1)
    line = (
        f"{compared - differing} of {compared} rows of {vocabulary} logits have the token of a CPU's kernel, "
        f"{pairs_differing} pairs differ; {describe_distribution(level_1)}"
    )
    return Verdict(not differing and level_1["p_value"] > UNLIKELY, line)
