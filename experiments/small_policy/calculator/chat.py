"""Templates of the policy's conversations. Calls and results have the form that Qwen's models use."""

from __future__ import annotations

from typing import Any

from experiments.small_policy.tokenizer import ASSISTANT, END

# The prompt names no tools: the policy knows its only tool from the warm start.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}<|assistant|>{% generation %}{{ message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "<tool_call>{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}</tool_call>"
    "{%- endfor -%}"
    "<|end|>{% endgeneration %}"
    "{%- elif message['role'] == 'tool' -%}"
    "<|user|><tool_response>{{ message['content'] }}</tool_response><|end|>"
    "{%- else -%}<|user|>{{ message['content'] }}<|end|>{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)

# With this template, transformers finds the content and the calls in a response.
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": ASSISTANT,
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": END.replace("|", r"\|"), "content": "text"},
    },
}


def call_message(content: str, expression: str) -> dict[str, Any]:
    """Return an assistant's message that calls the calculator."""
    function = {"name": "calculator", "arguments": {"expression": expression}}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


def result_message(result: str) -> dict[str, Any]:
    """Return the message with the calculator's answer to a call."""
    return {"role": "tool", "name": "calculator", "content": result}
