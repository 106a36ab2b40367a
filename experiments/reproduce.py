"""task=reproduce paper=das|efficient_rollout|nemo_rl: published numbers beside ours, as report.md with figures.

The published numbers, with their sources, are in experiments/papers/published.json.
"""

import importlib
import json
from pathlib import Path

from omegaconf import DictConfig

from analysis.report import markdown
from experiments.errors import UserError
from experiments.progress import Progress
from experiments.run_folder import RunFolder, write_text

PAPERS = {
    "das": "DAS, arXiv 2511.13841",
    "efficient_rollout": "EfficientRollout, arXiv 2606.18967",
    "nemo_rl": "System-integrated speculative decoding (NeMo RL), arXiv 2604.26779",
}


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Compute the paper's sections; write report.md, figures, result.json."""
    paper = str(config.task.paper)
    if paper not in PAPERS:
        raise UserError(f"task.paper={paper}: choose one of {', '.join(PAPERS)}")
    published = json.loads((Path(__file__).parent / "papers" / "published.json").read_text())
    module = importlib.import_module(f"experiments.papers.{paper}")
    run_folder = RunFolder(Path(folder), config)
    progress = Progress(0)
    sections = module.sections(config.task, config.budget, published, Path(folder), progress)
    report = Path(folder) / "report.md"
    write_text(report, markdown(PAPERS[paper], module.PREFACE, sections))
    run_folder.write_result({"sections": [{**vars(s), "lines": [vars(line) for line in s.lines]} for s in sections]})
    progress.note(f"report: {report}")
