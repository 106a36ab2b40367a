"""Ranks that train together give each other the responses that they finished.

Each rank has an engine of its own, and TRL deals problems to ranks anew in each epoch, so a problem comes back to the
engine that knows it once in so many ranks. When a rollout ends, the ranks exchange what they finished, in a thread
beside the training, and before the next rollout each takes what came. An engine gets a problem's responses of other
ranks before it rolls the problem out again, as engines of a cluster do (das/cluster/history_store.py), and indexes no
others.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from das.cluster.history_store import HistoryStore, finished_text
from das.drafter.saved import SavedHistory, SavedText, history_of, read_history
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.general import ranks
from das.general.arrays import packed, unpacked

OWN = 0  # the number of this rank's engine in its store
OF_OTHERS = "history_of_others.npz"  # a file of a checkpoint


class SharedHistory:
    """What one rank finished since its last rollout ended, and what others gave it.

    add_history: that of the rank's engine. gather: returns what each rank passes to it, in rank order; another thread
    calls it. gives: whether this rank gives its responses away: of the ranks that share an engine, one does. All ranks
    of the training must have such an object, and end equally many rollouts.
    """

    def __init__(
        self,
        add_history: Callable[[int, list[SavedText]], None],
        gather: Callable[[bytes], list[bytes]],
        gives: bool = True,
    ):
        self._store = HistoryStore()
        self._add_history = add_history
        self._gather = gather
        self._gives = gives
        self._rank = ranks.rank()
        self._finished: list[SavedText] = []
        self._beside = ThreadPoolExecutor(1)  # one thread, so exchanges never overtake each other
        self._exchanges: list[Future[tuple[list[SavedText], int]]] = []

    def note(self, request: RolloutRequest, rollout: Rollout) -> None:
        """Note the responses that this rank's engine finished in a rollout or a turn of the training."""
        if not self._gives:
            return
        tick = self._store.history_tick
        for prompt, finished in zip(request.prompts, rollout.finished, strict=True):
            self._finished.append(finished_text(finished, tick, prompt["prompt_token_ids"]))

    def end_rollout(self, history_tick: int, oldest: int | None) -> None:
        """Begin to exchange what was finished, and forget what lies before the oldest tick that the engine's drafter
        keeps."""
        assert oldest is not None, "the engine has no drafter of das"
        self._store.end_rollout(history_tick, oldest)
        history = SavedHistory(history_tick, self._finished)
        self._finished = []
        self._exchanges.append(self._beside.submit(self._exchange, history))

    def _exchange(self, own: SavedHistory) -> tuple[list[SavedText], int]:
        """Returns what the other ranks finished, and the bytes that this one sent."""
        message = packed(own.arrays())
        of_others = [given for rank, given in enumerate(self._gather(message)) if rank != self._rank]
        texts = [text for given in of_others for text in history_of(unpacked(given)).texts]
        return texts, len(message)

    def take(self) -> tuple[float, int]:
        """Keep what the other ranks finished in the rollouts that have ended. It waits for exchanges that still run.
        Returns the seconds for which it waited, and the bytes that this rank sent."""
        start, sent = time.perf_counter(), 0
        for exchange in self._exchanges:
            texts, of_exchange = exchange.result()
            sent += of_exchange
            for text in texts:
                self._store.add(text, [])
        self._exchanges = []
        return time.perf_counter() - start, sent

    def close(self) -> None:
        """Wait for the last exchange, and end the thread."""
        self._beside.shutdown()

    def prepare(self, problems: Sequence[str]) -> None:
        """Let the engine learn what other ranks answered to these problems, before it is asked for them."""
        self._add_history(self._store.history_tick, self._store.missing(OWN, dict.fromkeys(problems)))

    def save(self, folder: Path) -> None:
        """Write what a resumed run needs into the folder of a checkpoint. All ranks must call it."""
        self.take()
        kept = self._store.saved()
        lacking = [text for text, known in zip(kept.texts, self._store.known(), strict=True) if OWN not in known]
        replace(kept, texts=lacking).write(folder / OF_OTHERS)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        self.take()  # what an earlier training in this process exchanged last
        of_others = read_history(folder / OF_OTHERS)
        self._store.restore(of_others, [[]] * len(of_others.texts))
