"""The list of the parts of task=check_gpu, the most valuable part first."""

from dataclasses import dataclass

CHECKS = "experiments.gpu"


@dataclass(frozen=True)
class Part:
    """One check of the machine. `function` (module:name, or module:name:argument) runs it in a separate process.

    seconds: time limit on a GPU. gib: GPU memory that the part needs, in GiB. what: the part's question, for the
    report. unless: another part; if that one passed, this one has nothing to find out, and is left out.
    """

    name: str
    function: str
    what: str
    seconds: float
    gib: float = 70.0
    unless: str | None = None


def _speed(name: str, arm: str, what: str, seconds: float = 70) -> Part:
    return Part(f"speed_{name}", f"{CHECKS}.speed:speed:{arm}", what, seconds)


_FIRST = f"{CHECKS}.first_tokens:first_tokens"
ALL = (
    Part(
        "sampler", f"{CHECKS}.sampler:sampler", "the sampler's kernels: tokens, us a row, distribution (level 1)", 45, 8
    ),
    Part("first_tokens", f"{_FIRST}:graphs", "does das run at all, with CUDA graphs and without a compiler?", 75, 24),
    Part("first_tokens_eager", f"{_FIRST}:eager", "and without graphs?", 60, 24, "first_tokens"),
    Part("first_tokens_triton", f"{_FIRST}:triton", "and with Triton's attention?", 60, 24, "first_tokens_eager"),
    _speed("stock", "stock", "8B shape: vLLM as it comes", 90),
    _speed("das", "das", "the same with das, at level 1", 88),
    Part("audit", f"{CHECKS}.audits:audit", "level 2: alone, in halves, with drafts of 0 to 32 tokens", 90, 40),
    Part("audit_eager", f"{CHECKS}.audits:audit:eager", "in which operation do they first differ?", 60, 40, "audit"),
    _speed("none", "none", "das's sampler without drafts"),
    Part("pass_times", f"{CHECKS}.pass_times:pass_times", "8B shape: time of a pass by live requests and drafts", 60),
    _speed("das_bits", "das.bits", "what level 2 costs, 64 requests", 60),
    _speed("none_bits", "none.bits", "the same without drafts", 60),
    Part("grpo", f"{CHECKS}.tasks:grpo", "level 3: GRPO steps of none and das, compared bit by bit", 150, 24),
    Part("sleep", f"{CHECKS}.audits:sleep", "sleep mode: memory given back, the same tokens afterwards", 75, 40),
    _speed("compiled_stock", "stock.compiled", "vLLM as it comes, compiled by Inductor", 150),
    _speed("compiled_das", "das.compiled", "das, compiled by Inductor", 150),
)
PARTS = {part.name: part for part in ALL}
