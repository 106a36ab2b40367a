"""The weights (`Weights` of recall.h) with which a new drafter starts. It then goes on learning them.

They were learned by replaying recordings: PRIOR, where the noise is unknown, on the first four problems of three traces
(areal_nemotron_base, arctic_prob0019_tokenids, areal_salloc), NOISY_PRIOR, where it is known, on runs that recorded
distributions.
"""

import json
from pathlib import Path

SIZES: dict[str, tuple[int, ...]] = {
    "match": (2, 16),
    "source": (19,),
    "rank": (11,),
    "none": (16, 8),
    "late": (16,),
    "recall": (16, 5),
}
# By the names of SIZES; each array is flat, in C order.
_priors: dict[str, dict[str, list[float]]] = json.loads(Path(__file__).with_name("prior.json").read_text())
PRIOR, NOISY_PRIOR = _priors["noise unknown"], _priors["noise known"]
