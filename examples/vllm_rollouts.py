"""Rollouts of a plain vLLM script that draft from past ones: python examples/vllm_rollouts.py MODEL [none]

MODEL: a directory or a hub id. With `none` at the end, the same tokens without drafts.
"""

import sys

from vllm import LLM, SamplingParams

import das


def main(model: str, method: str = "das") -> None:
    questions = {"sum": "what is 3 + 4?", "difference": "what is 12 - 5?", "chain": "add 7 to 15, then take 2 away"}

    das.install()
    on_cpu = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**30}  # float32: exact bits
    llm = LLM(model, **on_cpu, **das.engine_arguments(method))
    for step in range(4):
        problems = [problem for problem in questions for _ in range(4)]  # four responses to each
        params = [
            SamplingParams(max_tokens=64, temperature=0.5, seed=100 * step + i, extra_args={"das_problem": problem})
            for i, problem in enumerate(problems)
        ]
        outputs = llm.generate([questions[problem] for problem in problems], params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(step + 1,))  # these responses become history
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(f"step {step}: {tokens} tokens, {tokens / report['passes']:.2f} a pass, {report['drafted']} drafted")
        print(das.rollout_sentence(report))
        print([output.outputs[0].token_ids for output in outputs], file=sys.stderr)


if __name__ == "__main__":  # vLLM starts the engine in a process of its own, which imports this file
    if len(sys.argv) < 2:
        sys.exit("say which model: python examples/vllm_rollouts.py MODEL [none]")
    main(*sys.argv[1:])
