"""A worker extension for servers under test: what the engine's parts of das hold and have counted."""

import os
from typing import Any

if os.environ.get("SERVER_LOW_BOUNDS"):  # before the engine is built
    from engine_soak import lower_the_bounds

    lower_the_bounds()


class Counts:
    """vLLM adds its methods to the worker (`--worker-extension-cls`)."""

    model_runner: Any

    def drafted(self) -> dict[str, int]:
        """Counts of all requests since the meter began."""
        report = self.model_runner.das_meter.report()
        return {
            "drafts": report["draft_rounds"],
            "drafted": report["drafted"],
            "accepted": sum(report["step_emitted"]) - report["passes"],
        }

    def held(self) -> dict[str, int]:
        """What tests/engine/engine_soak.py bounds."""
        from engine_soak import sizes

        return sizes(self)
