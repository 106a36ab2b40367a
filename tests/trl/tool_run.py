"""Train a random policy in several turns with das.speculate(): python tests/trl/tool_run.py POLICY OUT

Its environments' methods are the tools. A random policy writes no calls: a rule on its tokens decides which responses
are one. Writes OUT/METHOD.json for METHOD none and das: what must be equal in both, and what the turns cost.
"""

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from trl_runs import ON_CPU, ask_llm

import das
from experiments.digests import weights_digest
from experiments.training.engines import save_history

# With calls of tools and their results, which the policy's own template lacks. TRL asks for both.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}<|assistant|>{% generation %}{{ message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "<tool_call>{{ call['function'] | tojson }}</tool_call>"
    "{%- endfor -%}"
    "<|end|>{% endgeneration %}"
    "{%- elif message['role'] == 'tool' -%}<|user|><tool_response>{{ message['content'] }}</tool_response><|end|>"
    "{%- else -%}<|user|>{{ message['content'] }}<|end|>{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
RESPONSE_TEMPLATE = {"defaults": {"role": "assistant"}, "fields": {"content": {"close_pattern": r"<\|end\|>"}}}
asked: list[Any] = []  # the engines that a button asks, too


class Buttons:
    """Buttons that know how often they were pressed."""

    def reset(self, name: str, **columns: Any) -> str:
        """Start anew."""
        self.pressed = 0
        return f" {name}"

    def press(self, button: int) -> str:
        """Press a button.

        Args:
            button: its number.
        """
        assert all(len(ask_llm(llm)) == 8 for llm in asked)
        self.pressed += 1
        return f"{self.pressed}: button {button} is {'red' if button % 2 else 'blue'}"


def parsed(tokenizer: Any, ids: list[int], **more: Any) -> dict[str, Any]:
    """In place of TRL's parse_response: two of three responses call a tool, whatever they say."""
    message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
    if sum(ids) % 3 == 0:
        return message
    function = {"name": "press", "arguments": {"button": sum(ids) % 5}}
    return {**message, "tool_calls": [{"type": "function", "function": function}]}


def reward(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """Letters of all messages: it depends on every turn."""
    return [float(sum(map(str.isalpha, "".join(turn["content"] for turn in turns)))) for turns in completions]


def build(policy: str, out: Path) -> GRPOTrainer:
    """A trainer with environments, which write the row's name into the prompt."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    prompts = [[{"role": "user", "content": "press"}]] * 2
    return GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts, "name": ["one", "two"]}),
        args=GRPOConfig(
            output_dir=str(out),
            vllm_max_model_length=480,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=400,
            max_tool_calling_iterations=3,
            generation_kwargs={"max_tokens": 24},  # of a turn
            temperature=0.3,
            max_steps=4,
            learning_rate=0.01,
            **ON_CPU,
        ),
        environment_factory=Buttons,
    )


def train(policy: str, method: str, out: Path) -> None:
    """Train once, write OUT/METHOD.json and the drafter's history."""
    das.speculate(method, drafter={"min_prob": 0.005}, budget={"name": "fixed", "tokens": 6})
    trainer = build(policy, out)
    generation = trainer.vllm_generation
    steps: list[tuple[Any, int]] = []
    by_turn: list[list[dict[str, int]]] = []
    finish_turns = generation.finish_turns

    def finished_turns() -> None:
        by_turn.append(
            [
                {"requests": len(turn.rows), "tokens": turn.rollout.tokens, "passes": turn.rollout.report.passes}
                for turn in generation._turns
            ]
        )
        finish_turns()
        steps.append((generation.last, generation.history_tick))

    generation.finish_turns = finished_turns
    asked[:] = [generation.llm] if method == "das" else []
    trainer.train()
    out.mkdir(parents=True, exist_ok=True)
    save_history(generation.engines, out / f"{method}.npz")
    generation.llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    numbers = ("loss", "grad_norm", "reward", "entropy")
    same = {
        "responses": [rollout.responses for rollout, _ in steps],
        "turns": [[each.turns for each in rollout.finished] for rollout, _ in steps],
        "problems": [[each.problem for each in rollout.finished] for rollout, _ in steps],
        "logs": [[row.get(key) for key in numbers] for row in trainer.state.log_history],
        "weights": weights_digest(trainer.model),
    }
    costs = {
        "by_turn": by_turn,
        "alarms": [rollout.report.alarms for rollout, _ in steps],
        "ticks": [tick for _, tick in steps],
    }
    (out / f"{method}.json").write_text(json.dumps({"same": same, "costs": costs}))


if __name__ == "__main__":
    das.install()
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    grpo_trainer.parse_response = parsed
    for arm in ("none", "das"):
        train(sys.argv[1], arm, Path(sys.argv[2]))
