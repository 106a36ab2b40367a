"""verl's agent loops, which name the problem and the sample of each request: so a response depends neither on the
order in which requests arrive nor on the replica that answers. `recipes/das.yaml` turns them on.

Rows of the data need an `extra_info.index` of their own if the same prompt may come twice in a step.
"""

import hashlib
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


class NamedRequests:
    """A client of verl's servers for one response. sample: what tells this response from all others of the run."""

    def __init__(self, client: Any, *sample: Any):
        self.client, self.sample, self.problem = client, sample, ""

    async def generate(self, request_id: Any, *, prompt_ids: Any, sampling_params: dict[str, Any], **rest: Any) -> Any:
        """Ask for a turn. All turns are of one problem, which the first prompt names, so they share a history."""
        self.problem = self.problem or _digest(*map(int, prompt_ids)).hex()
        own: dict[str, Any] = {"extra_args": {"das_problem": self.problem}}
        # This client asks again for aborted requests, with what they have as a longer prompt, and with the same seed.
        # Noise is counted from the end of the prompt, so it would come twice. Without a seed das makes a new one.
        if not isinstance(self.client, FullyAsyncLLMServerClient):
            seed = _digest(self.problem, self.sample, len(prompt_ids))  # the prompt grows with each turn
            own["seed"] = int.from_bytes(seed, "little", signed=True)
        return await self.client.generate(
            request_id, prompt_ids=prompt_ids, sampling_params={**sampling_params, **own}, **rest
        )


class _Named:
    server_manager: Any
    rollout_config: Any

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        sample = [
            int(part) for part in (self.rollout_config.seed, row["global_steps"], row["index"], row["session_id"])
        ]
        self.server_manager = NamedRequests(self.server_manager, *sample)
        return await super().run(sampling_params, **row)


class DasLoop(_Named, SingleTurnAgentLoop):
    """One turn."""


class DasToolLoop(_Named, ToolAgentLoop):
    """Turns with tools."""
