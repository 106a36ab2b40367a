"""Keep texts in the native core: a store of texts for each problem, and copies of finished texts for other problems."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from das.drafter import distributions, native
from das.drafter.distributions import Distributions
from das.drafter.options import SHARED_TEXTS


@dataclass
class LivePrompt:
    """An indexed prompt: the handle of its sequence, and the number of live requests that have it."""

    handle: int
    requests: int


@dataclass
class Store:
    """A problem's index in the core: handle, number of sequences, and live prompts by their bytes."""

    handle: int
    sequences: int
    prompts: dict[bytes, LivePrompt]


@dataclass
class IndexedRequest:
    """A request's text in the core. It stays in the history after the request has finished."""

    problem: str
    handle: int  # the handle of its sequence
    context: int  # number of prompt tokens stored before its response
    prompt: bytes | None  # key of its prompt in Store.prompts; None if prompts are not indexed
    length: int = 0  # number of response tokens
    copy: int = -1  # handle of the copy that other problems see; -1: none


class Stores:
    """The stores of the problems that have texts now. A store begins with its first text and ends with its last.

    remembers: whether the core keeps distributions beside tokens.
    """

    def __init__(self, lib: ctypes.CDLL, core: int, remembers: bool) -> None:
        self._lib, self._core, self._remembers = lib, core, remembers
        self._stores: dict[str, Store] = {}

    def begin_prompt(self, key: str, tokens: np.ndarray) -> bytes:
        """Index the prompt of a new request, unless a live request of the store has the same one. Returns its key."""
        store = self._store(key)
        prompt = tokens.tobytes()
        if prompt not in store.prompts:
            handle = native.check(self._lib.das_seq_new(self._core, store.handle, False, False, 0, 0))
            store.sequences += 1
            self.extend(handle, tokens, indexed=True)
            store.prompts[prompt] = LivePrompt(handle, 0)
        store.prompts[prompt].requests += 1
        return prompt

    def end_prompt(self, key: str, prompt: bytes) -> None:
        """Note that a request with this prompt is over. The prompt is dropped after the last one."""
        prompts = self._stores[key].prompts
        prompts[prompt].requests -= 1
        if not prompts[prompt].requests:
            self.forget(key, prompts.pop(prompt).handle)

    def new_response(
        self,
        problem: str,
        context: np.ndarray,
        prompt: bytes | None,
        drafts: bool = True,
        seed: int | None = None,
    ) -> IndexedRequest:
        """Start an empty response. context: the last prompt tokens, which are stored before it but not indexed. drafts:
        whether the request may get drafts."""
        store = self._store(problem)
        noise = (seed is not None, int(np.uint64((seed or 0) & 2**64 - 1).view(np.int64)))
        handle = native.check(self._lib.das_seq_new(self._core, store.handle, drafts, *noise, len(context)))
        store.sequences += 1
        self.extend(handle, context, indexed=False)
        return IndexedRequest(problem, handle, len(context), prompt)

    def extend(self, handle: int, tokens: np.ndarray, indexed: bool, remembered: np.ndarray | None = None) -> None:
        """Append tokens to a sequence. remembered: their distributions (das.drafter.distributions), if known."""
        beside = distributions.rows(remembered, len(tokens))
        address = None if beside is None else beside.ctypes.data
        native.check(self._lib.das_extend(self._core, handle, tokens.ctypes.data, address, len(tokens), int(indexed)))

    def read(self, text: IndexedRequest) -> tuple[np.ndarray, Distributions | None]:
        """Returns a text's tokens with their context, int32, and the distributions of the tokens after the context."""
        tokens = np.empty(text.context + text.length, np.int32)
        beside = distributions.unknown(len(tokens)) if self._remembers else None
        address = None if beside is None else beside.ctypes.data
        self._lib.das_read(self._core, text.handle, tokens.ctypes.data, address)
        if beside is None:
            return tokens, None
        return tokens, Distributions.of(tokens[text.context :], beside[text.context :])

    def forget(self, key: str, handle: int) -> None:
        """Drop a sequence from the store of this key. A store without sequences is dropped, too."""
        store = self._stores[key]
        native.check(self._lib.das_end(self._core, handle, 0, 0))
        store.sequences -= 1
        if not store.sequences:
            native.check(self._lib.das_store_end(self._core, store.handle))
            del self._stores[key]

    def _store(self, key: str) -> Store:
        """Returns the store of this key. It is made if there is none yet."""
        if key not in self._stores:
            self._stores[key] = Store(native.check(self._lib.das_store_new(self._core)), 0, {})
        return self._stores[key]


class SharedTexts:
    """Copies of finished texts that other problems see, at most `max_tokens` tokens in all; 0: no copies."""

    def __init__(self, lib: ctypes.CDLL, core: int, max_tokens: int) -> None:
        self._lib, self._core, self._max_tokens = lib, core, max_tokens
        # By the copy's handle, oldest first: the text, and the history tick in which it was copied.
        self._copied: dict[int, tuple[IndexedRequest, int]] = {}
        self._tokens = 0

    def add(self, finished: IndexedRequest, history_tick: int) -> None:
        """Copy a finished text, so that other problems can draft from the copy.

        In each tick, only the first SHARED_TEXTS texts of a problem are copied. Over all ticks a problem keeps at most
        SHARED_TEXTS copies; a new copy replaces its oldest one. If all copies need too much room, the oldest go.
        """
        own = [(text, tick) for text, tick in self._copied.values() if text.problem == finished.problem]
        if finished.length > self._max_tokens or sum(tick == history_tick for _, tick in own) == SHARED_TEXTS:
            return
        finished.copy = native.check(self._lib.das_share(self._core, finished.handle, finished.context))
        native.check(self._lib.das_end(self._core, finished.copy, 1, history_tick))
        self._copied[finished.copy] = finished, history_tick
        self._tokens += finished.length
        if len(own) == SHARED_TEXTS:
            self.drop(own[0][0])
        while self._tokens > self._max_tokens:
            self.drop(next(iter(self._copied.values()))[0])

    def drop(self, finished: IndexedRequest) -> None:
        """Remove the copy of a finished text, if there is one."""
        if finished.copy < 0:
            return
        native.check(self._lib.das_end(self._core, finished.copy, 0, 0))
        del self._copied[finished.copy]
        self._tokens -= finished.length
        finished.copy = -1
