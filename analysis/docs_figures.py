"""Draw all figures of docs/ from kept measurements: python -m analysis.docs_figures

docs/benchmarks/data/ holds the measurements, each file with its command, commit and date.
"""

import json
from pathlib import Path

from analysis.figures import draw_live_requests, draw_time_and_reward
from analysis.task_figures import force_figure

DOCS = Path(__file__).parents[1] / "docs"


def main(to: Path = DOCS) -> None:
    """Draw rollout_and_reward.png, live_requests.png and forced.png into the folder `to`."""
    data = DOCS / "benchmarks" / "data"
    kept = json.loads((data / "default_experiment.json").read_text())
    draw_time_and_reward(kept["rows"], to / "rollout_and_reward.png")
    lines = {name: (line["time_s"], line["live"]) for name, line in kept["live"].items()}
    draw_live_requests(lines, kept["live_step"], to / "live_requests.png")
    force_figure(json.loads((data / "forced.json").read_text()), to / "forced.png")


if __name__ == "__main__":
    main()
