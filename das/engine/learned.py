"""Save and load what a DasProposer has learned.

That is its history of texts, the lengths of responses, and the calibrated probabilities of acceptance. A budget is not
saved: within a few passes it measures the running engine anew, and what those of papers learn of responses begins
anew, too.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from das.general.arrays import load_arrays, save_arrays

if TYPE_CHECKING:
    from das.engine.proposer import DasProposer

HISTORY, LEARNED = "history.npz", "learned.npz"
KIND = "what a proposer learned"


def save(proposer: "DasProposer", folder: Path) -> None:
    """Write what the proposer has learned into files in `folder`. No request may be live.

    The drafter then continues from the file it wrote: an index built text by text finds occurrences in another order
    than one that grew token by token, and this run must draft what a resumed run will draft.
    """
    drafter = proposer.draft_round.drafter
    drafter.save(folder / HISTORY)
    drafter.load(folder / HISTORY)
    learned = {
        **proposer.lengths.state(),
        "calibration": proposer.calibration.counts,
        "usual": np.array(proposer.judge.usual),
        "told_tick": np.array(proposer.draft_round.drafter.told),
    }
    save_arrays(folder / LEARNED, {"kind": np.array(KIND), **learned})


def load(proposer: "DasProposer", folder: Path) -> None:
    """Continue from what `save` wrote, at the same history tick. Raises ValueError for files of another kind."""
    proposer.draft_round.drafter.load(folder / HISTORY)
    learned = load_arrays(folder / LEARNED, KIND)
    proposer.draft_round.drafter.told = int(learned["told_tick"])
    proposer.lengths.restore(learned)
    proposer.calibration.counts = learned["calibration"]
    proposer.judge.usual.extend((accepted, share) for accepted, share in learned["usual"].reshape(-1, 2).tolist())
