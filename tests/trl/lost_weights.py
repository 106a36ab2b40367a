"""A training whose weights never reach the engine, for the tests that it stops. Run it in a process of its own."""

from pathlib import Path

from experiments.harness.config import RunConfig


def train_with_lost_weights(config: RunConfig, policy: str, folder: str) -> str:
    """Train an arm whose engine goes on with its old weights. Returns the error's line."""
    from das.engine.patches import weights
    from das.errors import WeightSyncError
    from experiments.harness.train_arm import ArmRun, train_arm
    from experiments.training.barrier import Barrier

    weights.repack_linear_layers = lambda model: None
    try:
        train_arm(ArmRun(config, policy, Path(folder), "test", Barrier(lambda row: None)))
    except WeightSyncError as error:
        return str(error)
    return "training did not stop"
