"""The clock of the drafter's history: by ticks that callers give, or by tokens where nobody announces rollouts."""

# Where nobody announces rollouts, a history tick is this many response tokens, so that memory is bounded: the default
# window of 16 ticks then holds 8 million tokens, whose index takes about 90 bytes each.
TOKENS_PER_TICK = 2**19
# A request counts as so many further tokens: its prompt and bookkeeping take about 5 KB, however short its response.
TOKENS_PER_REQUEST = 64


class HistoryClock:
    """Counts the ticks of the drafter's history. told: the last tick that a caller gave, a step or an epoch."""

    def __init__(self, told: int):
        self.told = told
        self._unannounced_tokens = 0  # tokens of unannounced rollouts that do not make a tick yet

    def announced(self, tick: int) -> int:
        """Returns by how many ticks the clock moves at the end of an announced rollout. tick: the caller's new tick."""
        # A smaller tick comes from another trainer, whose clock began at 0. The history's clock never goes back.
        passed = tick - (self.told if tick >= self.told else 0)
        self.told = tick
        return passed

    def unannounced(self, requests: int, tokens: int) -> int:
        """Returns by how many ticks the clock moves at the end of an unannounced rollout. requests, tokens: how many
        requests ran in it, and the tokens that they emitted.
        """
        self._unannounced_tokens += tokens + TOKENS_PER_REQUEST * requests
        passed, self._unannounced_tokens = divmod(self._unannounced_tokens, TOKENS_PER_TICK)
        return passed
