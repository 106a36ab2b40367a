"""The list of the parts of task=check_gpu, the most valuable part first."""

from dataclasses import dataclass

from das.engine.contract.versions import BRANCHES, SECOND_RUNNER, VLLM

CHECKS = "experiments.gpu"


@dataclass(frozen=True)
class Part:
    """One check of the machine. `function` (module:name, or module:name:argument) runs it in a separate process.

    minutes: time limit on a GPU. gib: GPU memory that the part needs, in GiB. what: the part's question, for the
    report. versions: of vLLM with which das does not refuse what the part checks. like: another part, which does the
    same on a CPU.
    """

    name: str
    function: str
    what: str
    minutes: float = 3.0
    gib: float = 8.0
    versions: tuple[str, ...] = VLLM
    like: str | None = None


ALL = (
    Part(
        "kernels",
        f"{CHECKS}.kernels:kernels",
        "bits of row 0 in single operations of 7B and 8B, 1 to 2,048 rows",
        gib=16,
    ),
    Part("environment", f"{CHECKS}.device:environment", "versions, driver, hooks, and a tiny model's tokens", gib=4),
    Part("sampler", f"{CHECKS}.device:sampler", "the keyed sampler: bits, time, distribution (level 1)"),
    Part(
        "audit_eager",
        f"{CHECKS}.audits:eager",
        "level 2 with batch-invariant kernels, eager: none against none, then drafts of all lengths",
        gib=24,
    ),
    Part("audit_captured", f"{CHECKS}.audits:captured", "the same with CUDA graphs", gib=24, like="audit_eager"),
    Part(
        "audit_second",
        f"{CHECKS}.audits:second",
        "the same on vLLM's second model runner",
        gib=24,
        versions=SECOND_RUNNER,
    ),
    Part("forced", f"{CHECKS}.tasks:forced", "made-up recordings on a 7B shape: time of none, stock and das", gib=70),
    Part("pass_times_7b", f"{CHECKS}.tasks:pass_times:7b", "time of a pass by live requests, drafts, context", gib=40),
    Part("policy", f"{CHECKS}.tasks:policy", "the small policy for the next part is made", gib=2),
    Part("grpo", f"{CHECKS}.tasks:grpo", "level 3: GRPO steps of none and das, compared bit by bit", gib=24),
    Part(
        "audit_variant",
        f"{CHECKS}.audits:variant",
        "level 2 without batch-invariant kernels",
        gib=24,
        like="audit_eager",
    ),
    Part("memory", f"{CHECKS}.device:memory", "memory of sampling 8,192 rows, and of a digest of weights", gib=12),
    Part("sleep", f"{CHECKS}.audits:sleep", "sleep mode: memory given back, the same tokens afterwards", gib=24),
    Part("branches", f"{CHECKS}.audits:branches", "level 2 with drafts that branch", gib=24, versions=BRANCHES),
    Part("self_draft", f"{CHECKS}.audits:self_draft", "self-drafts of 4-bit weights", gib=24, versions=BRANCHES),
    Part("pass_times_8b", f"{CHECKS}.tasks:pass_times:8b", "as pass_times_7b", gib=40, like="pass_times_7b"),
    Part("pass_times_1.7b", f"{CHECKS}.tasks:pass_times:1.7b", "as pass_times_7b", gib=16, like="pass_times_7b"),
)
PARTS = {part.name: part for part in ALL}
