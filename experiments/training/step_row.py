"""Make the columns of the row that a training step writes to metrics.jsonl (docs/reference.md explains the names)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from das.engine.rollouts.rollout import Rollout
from das.trl.lag import Sync
from experiments.digests import digest
from experiments.run.errors import TrainingDiverged
from experiments.run.rollout_row import rollout_row


def logged_by_trl(logs: Mapping[str, float]) -> dict[str, Any]:
    """Return the columns that come from TRL's own logs."""
    return {
        "learning_rate": logs["learning_rate"],
        "kl": logs.get("kl"),
        "entropy": logs.get("entropy"),
        "sampling_logp_difference": logs.get("sampling/sampling_logp_difference/max"),
    }


def of_syncs(syncs: Sequence[Sync]) -> dict[str, Any]:
    """Return the columns about the weight sync: how the engine got the new weights. syncs: one entry for each rank."""
    return {
        "sync_s": max(sync.seconds for sync in syncs),
        "check_s": max(sync.check_s for sync in syncs),
        "exchange_s": max(sync.exchange_s for sync in syncs),
        "exchange_bytes": sum(sync.exchange_bytes for sync in syncs),
    }


def of_rollout(rollout: Rollout, rewards: Sequence[float | None]) -> dict[str, Any]:
    """Return the columns about the rollout and its rewards. rewards: one for each response; None: it has none."""
    given = [reward for reward in rewards if reward is not None]
    return {
        "reward": float(np.mean(given)) if given else None,
        **rollout_row(rollout),
        "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
        "rewards_digest": digest(np.asarray(rewards, np.float64)),  # NaN for None
    }


def require_finite(losses: Sequence[float], norms: Sequence[float], step: int) -> None:
    """Raise TrainingDiverged unless all numbers are finite.

    losses, norms (of gradients): one number for each rank, so that all ranks stop together.
    """
    for rank, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        if not np.isfinite([loss, norm]).all():
            where = f" (rank {rank})" if len(losses) > 1 else ""
            raise TrainingDiverged(
                f"step {step}: loss {loss:g}, gradient norm {norm:g}: the policy is lost{where}; try a lower "
                "trainer.learning_rate"
            )
