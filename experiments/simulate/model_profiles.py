"""Read the acceptance rates of drafters that are models. model_profiles.json has measured and published rates.

Measured values are for our small policy. A drafter for a 7B may be right less often, because a copy of few bits agrees
better with a policy whose text is easy. Published values are for the models of the papers.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from experiments.simulate.profile_engine import Profile, constant_rate

FILE = Path(__file__).with_name("model_profiles.json")


@dataclass(frozen=True)
class Acceptance:
    """The acceptance of one drafter, and its source."""

    name: str
    basis: str  # "measured": on our small policy; "published": by a paper; "given": by the user
    what: str
    rates: tuple[float, ...]  # P(draft token j is accepted | those before it are); the last one holds for later tokens
    source: str
    tau: dict[int, float]  # draft length -> the measured or published tokens per pass

    def profile(self, tokens: int) -> Profile:
        """Return the acceptance of each token of a draft of `tokens` tokens, as a simulation takes it."""
        return Profile((self.rates + self.rates[-1:] * tokens)[:tokens])


def read_profiles() -> dict[str, Acceptance]:
    """Read model_profiles.json: name -> acceptance. Without rates, the tau of the longest draft gives one rate."""
    profiles = {}
    for name, row in json.loads(FILE.read_text(encoding="utf-8")).items():
        tau = {int(tokens): value for tokens, value in row["tau"].items()}
        rates = row["rates"] or constant_rate(tau[max(tau)], max(tau)).rates
        profiles[name] = Acceptance(name, row["basis"], row["what"], tuple(rates), row["source"], tau)
    return profiles
