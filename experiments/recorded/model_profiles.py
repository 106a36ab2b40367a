"""The acceptance of drafters that are models: model_profiles.json has measured and published values.

Measured values are of our small policy. A drafter of a 7B may be right less often: a copy of few bits is nearer to a
policy whose text is easy. Published values are of the papers' models.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from experiments.replay.profile_engine import Profile, constant_rate

FILE = Path(__file__).with_name("model_profiles.json")


@dataclass(frozen=True)
class Acceptance:
    """One drafter's acceptance and where it is from."""

    name: str
    basis: str  # "measured": on our small policy; "published": by a paper, of its models; "given": by the user
    what: str
    rates: tuple[float, ...]  # P(draft token j is accepted | those before it are); the last one holds for later tokens
    source: str
    date: str
    tau: dict[int, float]  # draft length -> tokens per pass, as it was measured or published

    def profile(self, tokens: int) -> Profile:
        """The profile of drafts of this length."""
        return Profile((self.rates + self.rates[-1:] * tokens)[:tokens])


def read_profiles() -> dict[str, Acceptance]:
    """All of model_profiles.json, by name. Where no rates are stated, the one that gives the longest draft's tau."""
    profiles = {}
    for name, row in json.loads(FILE.read_text(encoding="utf-8")).items():
        tau = {int(tokens): value for tokens, value in row["tau"].items()}
        rates = row["rates"] or constant_rate(tau[max(tau)], max(tau)).rates
        profiles[name] = Acceptance(name, row["basis"], row["what"], tuple(rates), row["source"], row["date"], tau)
    return profiles
