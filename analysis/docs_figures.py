"""Draw all figures of docs/ from kept measurements: python -m analysis.docs_figures

docs/benchmarks/data/ holds the measurements, each file with its command, commit and date.
"""

import json
from pathlib import Path

from analysis.figures import Panel, draw_live_requests, draw_panels, draw_time_and_reward
from das.general.files import replacing

DOCS = Path(__file__).parents[1] / "docs"
# Names as W&B has them: transformers puts train/ before each of TRL's.
IN_WANDB = tuple(
    Panel(f"train/{name}", unit, (f"train/{name}",))
    for name, unit in (("das/rollout_s", "s"), ("das/tokens_per_pass", "tokens"), ("reward", "mean reward"))
)


def main(to: Path = DOCS) -> None:
    """Draw rollout_and_reward.png, live_requests.png and wandb_panel.png into the folder `to`."""
    data = DOCS / "benchmarks" / "data"
    kept = json.loads((data / "default_experiment.json").read_text())
    draw_time_and_reward(kept["rows"], to / "rollout_and_reward.png")
    lines = {name: (line["time_s"], line["live"]) for name, line in kept["live"].items()}
    draw_live_requests(lines, kept["live_step"], to / "live_requests.png")
    with replacing(to / "wandb_panel.png") as file:
        draw_panels(json.loads((data / "wandb_panel.json").read_text())["runs"], IN_WANDB, file)


if __name__ == "__main__":
    main()
