"""How many tokens a second does a model make here with stock (vLLM as it comes), none (an engine of das without drafts)
and das? `arms_apart` gives each a process of its own, because an engine of das leaves its kernels in a process.

Each arm answers the same made-up questions twice. das drafts a first visit from siblings, and a second one from the
first, too.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from das.engine.checked_policies import answer_apart
from das.general.files import write_text

ARMS = ("stock", "none", "das")
SIBLINGS, VISITS = 8, 2
QUESTION = "A shop has {0} boxes with {1} pens each. {2} pens are sold. How many are left? Think step by step."
MEMORY = 0.85  # of the GPU, for the engine alone


def arms_apart(model: str, exact: str | None) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Measure one arm after the other. Yields its name, and what `measure` returned, or in words why it did not."""
    for arm in ARMS:
        found, ended = answer_apart(__name__, arm, model, exact or "")
        yield arm, f"{arm} {ended}" if found is None else found
        if found is None:
            return


def measure(arm: str, model: str, exact: str | None) -> dict[str, Any]:
    """Roll out with one arm. Returns the number of requests at once, the longest response in tokens, and of each visit
    tokens a second, drafted and accepted tokens."""
    import das
    from das.engine.build import build_engine, warm_up
    from das.engine.rollouts.rollout import RolloutRequest, request_seed, roll_out
    from das.engine.settings import EngineSettings

    stock = arm == "stock"
    if not stock:
        das.install(exact=exact)
    from vllm import SamplingParams
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    questions, longest = (2, 64) if on_cpu else (8, 256)
    settings = EngineSettings(
        model=model,
        method=arm,
        dtype="float32" if on_cpu else "auto",
        max_model_len=longest + 256,
        max_num_seqs=questions * SIBLINGS,
        enforce_eager=on_cpu,
        gpu_memory_utilization=0.1 if on_cpu else MEMORY,
        exact=exact,
    )
    llm = build_engine(settings)
    warm_up(llm)
    tokenizer = llm.get_tokenizer()

    def visit(number: int, first: int, length: int) -> dict[str, float]:
        asked = [_prompt(tokenizer, QUESTION.format(3 + i, 12 + 5 * i, 7 + i)) for i in range(first, first + questions)]
        prompts = [prompt for prompt in asked for _ in range(SIBLINGS)]
        params = SamplingParams(temperature=1.0, max_tokens=length, logprobs=0, detokenize=False)
        if stock:  # users of plain vLLM pass neither seeds nor problems
            start = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            took, tokens = time.perf_counter() - start, sum(len(output.outputs[0].token_ids) for output in outputs)
            return {"tokens_per_s": tokens / took, "drafted": 0, "accepted": 0}
        request = RolloutRequest(
            prompts,
            params,
            [str(first + i) for i in range(questions) for _ in range(SIBLINGS)],
            [request_seed(first, number, i) for i in range(questions * SIBLINGS)],
            step=number,
            next_history_tick=number + 1,
        )
        done = roll_out(llm, request)[1]
        return {
            "tokens_per_s": done.tokens / done.rollout_s,
            "drafted": done.report.drafted,
            "accepted": done.accepted,
        }

    visit(0, questions, 16)  # other questions: what is compiled or allocated at a first use is there
    visits = [visit(number, 0, longest) for number in range(VISITS)]
    return {"live": questions * SIBLINGS, "longest": longest, "visits": visits}


def _prompt(tokenizer: Any, question: str) -> dict[str, list[int]]:
    if tokenizer.chat_template is None:
        return {"prompt_token_ids": tokenizer.encode(question)}
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


if __name__ == "__main__":
    file, arm, model, exact = sys.argv[1:]
    write_text(Path(file), json.dumps(measure(arm, model, exact or None)))
