"""The rollout worker that AsyncGRPOTrainer gets from das: rollouts at a fixed lag.

TRL trains on whatever its worker has put into a queue. This worker puts in the samples of exactly one training step for
each version of the weights, in the dataset's order. So the lag, and never the clock, decides what is computed. The
order of rows, the rewards and the advantages come from TRL's own code.
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
NOT_COLUMNS = ("prompt", "completion", "completion_ids")  # columns of a row that are not passed on to reward functions
Row = Mapping[str, Any]


class FixedLagWorker:
    """Implements TRL's RolloutWorkerProtocol: one rollout for each training step, with the weights of `lag` steps
    before.

    A thread of QueuedGeneration speaks with the engine. Each rollout has a thread that waits for it and then calls the
    reward functions. The rollouts are scored one after the other.
    """

    def __init__(self, trainer: Any, generation: QueuedGeneration, lag: int, logged: tuple[str, ...]):
        """trainer: still has TRL's own worker. lag: in steps. logged: entries of rollout_row that go into TRL's
        logs."""
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.generation = generation
        self._trainer, self._lag, self._logged = trainer, lag, logged
        self._tokenizer = parsing(trainer.processing_class)
        # This object of TRL supplies rows, rewards and metrics. Its loop never runs, and so needs no tokenizer. With a
        # tokenizer, it would refuse one whose chat template it does not know.
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
        self._trl._loop.set_default_executor(self._threads)  # TRL calls reward functions in these threads
        self._unscored: deque[Future[None]] = deque()  # rollouts whose samples are not in the buffer yet, in order
        self._stopping = False

    # ---- what TRL calls ----

    def start(self) -> None:
        """Submit the rollouts of all steps that train on samples of the first weights. TRL calls this when training
        starts."""
        if self._trainer.state.global_step:
            raise EngineError("AsyncGRPOTrainer cannot be resumed with das, whose rollouts ahead are in no checkpoint")
        for step in range(self._lag + 1):
            self._submit(step, new_weights=not step)

    def update_model_version(self, model_version: int) -> None:
        """Submit the rollout of the step that is `lag` steps ahead. TRL calls this after each update. It numbers the
        first weights 1.

        Raises the error that a rollout or a reward function raised.
        """
        self._require_none_failed()
        if updates := self._trainer.state.global_step:
            self._submit(updates + self._lag, new_weights=True)

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error that a rollout or a reward function raised. TRL calls this while it waits. A long rollout is
        no error."""
        self._require_none_failed()
        if not self._unscored and self.rollout_buffer.empty():
            raise EngineError("AsyncGRPOTrainer with das trains once: build a new trainer to train again")

    def stop(self) -> None:
        """End the engine, even during a rollout. Samples that nobody will train on are dropped."""
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
        """Submit the rollout of a step. The step after the trainer's last one has a rollout, too, because TRL fetches
        one micro-batch ahead.
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
        """Raise the error that a rollout or a reward function raised. Raise EngineError if TRL left samples out."""
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
        """Score a finished rollout, and give all its samples to the trainer, after those of the `previous` rollout. If
        either rollout failed, give none: TRL would train on samples of a later step in place of the missing ones.

        rows: TRL's group id and the dataset's row, for each response.
        """
        if previous is not None:
            previous.result()  # raises here what the previous rollout raised
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
        """Returns TRL's RolloutGroup for the responses at these places, equal to what TRL's own loop would make."""
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
    """Returns a copy of the tokenizer. If TRL knows the chat template, the copy parses responses as TRL's worker does.

    A copy is needed, because the tokenizer is changed and used in another thread.
    """
    own = copy.deepcopy(tokenizer)
    if not parses(own):
        with suppress(ValueError):  # TRL does not know the template
            add_response_schema(own)
    return own


def parses(tokenizer: Any) -> bool:
    """Returns whether transformers can split a response into thoughts and text with this tokenizer."""
    return any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))


def message(tokenizer: Any, response: list[int], prompt: list[int]) -> Any:
    """Returns a response as a message for reward functions: parsed by TRL or, if that is not possible, as text.
    response, prompt: token ids."""
    if parses(tokenizer):
        return parse_response(tokenizer, response, prefix=prompt)
    return {"role": "assistant", "content": tokenizer.decode(response, skip_special_tokens=True)}


def samples_per_step(args: Any) -> int:
    """Returns the number of responses per training step of an AsyncGRPOTrainer with one process and no token budget."""
    samples: int = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return samples
