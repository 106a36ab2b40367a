"""The rollout worker that AsyncGRPOTrainer gets from das: rollouts at a fixed lag.

TRL trains on whatever its worker has put into a queue. This worker puts in the samples of exactly one training step for
each version of the weights, in the dataset's order. So the lag, and never the clock, says what is computed. The order
of rows, the rewards and the advantages come from TRL's own code.
"""

import copy
import queue
import time
import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace
from typing import Any

from trl.chat_template_utils import add_response_schema, parse_response
from trl.experimental.async_grpo import async_rollout_worker as trl_worker

from das.engine.rollouts.rollout import rollout_row
from das.errors import EngineError
from das.trl.ahead.daemon_threads import DaemonThreads
from das.trl.lag import FinishedRollout
from das.trl.queued_generation import QueuedGeneration

# TRL's counts of samples that it leaves out. None may be left out, because the clock would decide which.
DROPPED = ("sample/dropped_stale_total", "batch/dropped_oversize_total")
REWARDS_S = 20  # seconds that a reward function gets to return once the training is over, as in TRL
NOT_COLUMNS = ("prompt", "completion", "completion_ids")  # entries of a row that reward functions do not get from it
Row = Mapping[str, Any]


class FixedLagWorker:
    """TRL's RolloutWorkerProtocol: a rollout for each training step, with the weights of `lag` steps before.

    A thread of QueuedGeneration speaks with the engine. Each rollout has a thread that waits for it and then calls the
    reward functions. The rollouts are scored one after the other.
    """

    def __init__(self, trainer: Any, generation: QueuedGeneration, lag: int, logged: tuple[str, ...]):
        """trainer: it still has TRL's own worker. logged: names in rollout_row that go into TRL's logs."""
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.generation = generation
        self._trainer, self._lag, self._logged = trainer, lag, logged
        self._tokenizer = parsing(trainer.processing_class)
        # TRL's loop is here for its rows, rewards and metrics. It never runs, and so needs no tokenizer: it would
        # refuse those whose chat template it does not know.
        no_tokenizer = SimpleNamespace(response_template={}, pad_token_id=self._tokenizer.pad_token_id)
        self._trl = trl_worker._AsyncRolloutLoop(
            **{**trainer.rollout_worker._loop_kwargs, "processing_class": no_tokenizer},
            rollout_buffer=self.rollout_buffer,
            metrics_queue=self.metrics_queue,
            model_version_value=None,
            heartbeat_value=None,
            failed_event=None,
            exception_info_queue=None,
        )
        self._rows = self._trl._repeat_iterator()
        self._threads = DaemonThreads()
        self._trl._loop.set_default_executor(self._threads)  # in which TRL calls reward functions
        self._unscored: deque[Future[None]] = deque()  # rollouts whose samples are not in the buffer yet, in order
        self._stopping = False

    # ---- what TRL calls ----

    def start(self) -> None:
        """The training begins: roll out for the steps that the first weights sample."""
        if self._trainer.state.global_step:
            raise EngineError("AsyncGRPOTrainer cannot be resumed with das, whose rollouts ahead are in no checkpoint")
        for step in range(self._lag + 1):
            self._submit(step, new_weights=not step)

    def update_model_version(self, model_version: int) -> None:
        """The trainer has new weights: roll out for the step `lag` steps away. TRL's version 1 is before any update.

        Raises what a rollout or a reward function raised.
        """
        self._require_none_failed()
        if updates := self._trainer.state.global_step:
            self._submit(updates + self._lag, new_weights=True)

    def check_health(self, stale_after_s: float) -> None:
        """The trainer waits for samples. Raises what a rollout or a reward function raised. A long rollout is fine."""
        self._require_none_failed()
        if not self._unscored and self.rollout_buffer.empty():
            raise EngineError("AsyncGRPOTrainer with das trains once: build a new trainer to train again")

    def stop(self) -> None:
        """End the engine, also amid a rollout. Samples that nobody will train on are forgotten."""
        self._stopping = True
        self.generation.close()
        wait(self._unscored, timeout=REWARDS_S)
        if self._trl._loop.is_running():
            warnings.warn(
                f"a reward function still runs {REWARDS_S} s after the training: it is left behind, to end with Python",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._trl._loop.close()
        self._unscored.clear()
        while not self.rollout_buffer.empty():
            self.rollout_buffer.get()

    # ---- rollouts ----

    def _submit(self, step: int, new_weights: bool) -> None:
        """Submit the rollout of a step. One more step than the trainer's last has a rollout, because TRL fetches a
        micro-batch ahead.
        """
        trainer, state = self._trainer, self._trainer.state
        if step > state.max_steps:
            return
        rows = list(islice(self._rows, samples_per_step(trainer.args)))
        prompts = [self._tokenized(row["prompt"]) for _, row in rows]
        done = self.generation.submit(trainer, [row for _, row in rows], prompts, step, new_weights)
        previous = self._unscored[-1] if self._unscored else None
        self._unscored.append(self._threads.submit(self._hand_out, previous, rows, done))

    def _tokenized(self, prompt: Any) -> list[int]:
        ids: list[int] = self._trainer.processing_class.apply_chat_template(
            prompt, return_dict=False, add_generation_prompt=True, **self._trl.chat_template_kwargs
        )
        return ids

    def _require_none_failed(self) -> None:
        """Raise what a rollout or a reward function raised, EngineError if TRL left samples out."""
        while self._unscored and self._unscored[0].done():
            self._unscored.popleft().result()
        metrics = self._trainer._metrics["train"]
        if found := [name for name in DROPPED if metrics.get(name)]:
            raise EngineError(
                f"TRL left samples out ({found[0]}): max_staleness and token_budget must stay as they were"
            )

    # ---- rewards ----

    def _hand_out(
        self, previous: "Future[None] | None", rows: list[tuple[int, Row]], done: "Future[FinishedRollout]"
    ) -> None:
        """Score a finished rollout, and give the trainer all of its samples, after those of the `previous` rollout. If
        either failed, give none: TRL would train on samples of a later step in place of those that failed.

        rows: TRL's group id and row of each.
        """
        if previous is not None:
            previous.result()  # what it raised, this one raises too
        finished = done.result()
        row = rollout_row(finished.rollout)
        das_metrics = {f"das/{name}": float(row[name]) for name in self._logged}
        size, samples = self._trl.num_generations, []
        for first in range(0, len(rows), size):
            if self._stopping:
                raise CancelledError
            group = self._group(*rows[first], finished, range(first, first + size))
            samples += self._trl._loop.run_until_complete(self._trl._score_group(group))
        for sample in samples:
            sample.metrics.update(das_metrics)
            sample.enqueued_at = time.time()
            self.rollout_buffer.put(sample)

    def _group(self, group_id: int, row: Row, finished: FinishedRollout, places: range) -> Any:
        """TRL's RolloutGroup of the responses at these places, as its own loop would make it."""
        trl, size = self._trl, len(places)
        completions, sequences = [], []
        responses = [finished.rollout.responses[place] for place in places]
        for place, response in zip(places, responses, strict=True):
            prompt, logprobs = finished.prompts[place], finished.logprobs[place]
            turn = trl_worker.TurnRecord(prompt, response, logprobs)
            made, tally = trl_worker._chain_to_sequences([turn], "", trl._fork_threshold_tokens)
            completions.append([message(self._tokenizer, response, prompt)])
            sequences.append(made)
            trl._push_rollout_metrics(
                turns=1,
                sequences=len(made),
                completion_ids=response,
                tally=tally,
                loop_exhausted=False,
                duration_s=finished.rollout.requests[place].last_s,
            )
        return trl_worker.RolloutGroup(
            prompts=[row["prompt"]] * size,
            reward_kwargs={name: [value] * size for name, value in row.items() if name not in NOT_COLUMNS},
            completions=completions,
            completions_ids=responses,
            completions_sequences=sequences,
            tool_call_counts=[0] * size,
            tool_failure_counts=[0] * size,
            model_version=finished.weights + 1,  # TRL counts the weights before any update as 1
            group_id=group_id,
            env_rewards=[None] * size,
            rollout_rewards=[None] * size,
        )


def parsing(tokenizer: Any) -> Any:
    """A copy of the tokenizer that parses responses as TRL's worker does, if TRL knows the chat template.

    A copy, because it is changed, and used in another thread.
    """
    own = copy.deepcopy(tokenizer)
    if not parses(own):
        with suppress(ValueError):  # TRL does not know the template
            add_response_schema(own)
    return own


def parses(tokenizer: Any) -> bool:
    """Whether transformers can take a response apart, into thoughts and text."""
    return any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))


def message(tokenizer: Any, response: list[int], prompt: list[int]) -> Any:
    """The message of a response for reward functions: TRL's, or one of plain text if it cannot be parsed."""
    if parses(tokenizer):
        return parse_response(tokenizer, response, prefix=prompt)
    return {"role": "assistant", "content": tokenizer.decode(response, skip_special_tokens=True)}


def samples_per_step(args: Any) -> int:
    """Responses that a step of an AsyncGRPOTrainer without a token budget trains on, in one process."""
    samples: int = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return samples
