"""A training in which no step waits for its longest responses, and no response is stale: python
examples/partial_rollouts.py MODEL [none] [LEARNING_RATE]

A step ends when each response has at most 32 tokens more than in the step before. Unfinished ones are put aside. In the
next step they begin anew with their seeds under the new weights, and what they had is drafted. MODEL: a directory or a
hub id. With `none` the tokens and weights are the same without drafts, so what was put aside is computed again.
"""

import sys
import time
import zlib
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams

import das

if len(sys.argv) < 2:
    sys.exit("say which model: python examples/partial_rollouts.py MODEL [none] [LEARNING_RATE]")
model, method = sys.argv[1], "none" if "none" in sys.argv else "das"
rate = float(sys.argv[-1]) if sys.argv[-1][0].isdigit() else 1e-6  # TRL's default for GRPO
MORE, LONGEST, NEW, STEPS = 32, 256, 16, 8  # tokens a step and a response, new requests a step, steps
questions = ["what is 3 + 4?", "what is 12 - 5?", "add 7 to 15, then take 2 away", "tell me a story of two numbers"]


@dataclass
class Request:
    question: str
    seed: int
    visits: int = 0  # steps that it has been in
    tokens: list[int] = field(default_factory=list)  # of the last visit


das.install()
llm = LLM(model, dtype="float32", enforce_eager=True, gpu_memory_utilization=0.1, **das.engine_arguments(method))
engines_model = llm.llm_engine.model_executor.driver_worker.model_runner.model
tokenizer = AutoTokenizer.from_pretrained(model)
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0)


def update(finished: list[Request]) -> None:
    """One step of REINFORCE: responses with more digits than the others become more probable."""
    rewards = [sum(letter.isdigit() for letter in tokenizer.decode(request.tokens)) for request in finished]
    for request, reward in zip(finished, rewards, strict=True):
        advantage = (reward - sum(rewards) / len(rewards)) / (1 + max(rewards))
        prompt = tokenizer(request.question).input_ids
        logits = policy(torch.tensor([prompt + request.tokens])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)[range(len(request.tokens)), request.tokens]
        (-advantage * logprobs.mean() / len(finished)).backward()
    optimizer.step()
    optimizer.zero_grad()
    engines_model.load_weights((name, tensor.data) for name, tensor in policy.named_parameters())


def shared(old: list[int], new: list[int]) -> int:
    """Returns how many of the old tokens the new policy drew again, up to the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


pool: list[Request] = []
total_s = 0.0
for step in range(STEPS):
    pool += [Request(questions[i % len(questions)], seed=1000 * step + i) for i in range(NEW)]
    params = [
        SamplingParams(
            temperature=1.0,
            seed=request.seed,  # so the noise is the same as in the visits before
            max_tokens=min(LONGEST, MORE * (request.visits + 1)),  # counts tokens, so drafts do not change who is done
            extra_args={"das_problem": request.question, "das_set_aside": request.tokens},
        )
        for request in pool
    ]
    began = time.perf_counter()
    outputs = llm.generate([request.question for request in pool], params, use_tqdm=False)
    took = time.perf_counter() - began
    total_s += took
    (report,) = llm.collective_rpc("das_end_rollout", args=(step + 1,))
    old = kept = 0
    finished, unfinished = [], []
    for request, output in zip(pool, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        old, kept = old + len(request.tokens), kept + shared(request.tokens, tokens)
        request.tokens, request.visits = tokens, request.visits + 1
        done = output.outputs[0].finish_reason != "length" or len(tokens) >= LONGEST
        (finished if done else unfinished).append(request)
    print(
        f"step {step}: {took:.2f} s, {report['decode_steps']} passes, {len(finished)} responses done, {kept} of {old} "
        f"tokens put aside were kept",
        flush=True,
    )
    if finished:
        update(finished)
    pool = unfinished
weights = zlib.crc32(b"".join(tensor.numpy().tobytes() for tensor in policy.state_dict().values()))
print(f"{total_s:.2f} s of rollouts; weights {weights:08x}")
