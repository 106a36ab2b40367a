"""Draw the figure of task=force: each arm's rollout time relative to that without drafts, by number of live
requests."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.figures import colours_of, figure, label


def force_figure(result: dict[str, Any], path: Path) -> None:
    """Draw, for each arm, the ratio of its rollout time to that of `none`, and its tokens per pass. result: content of
    result.json."""
    arms = [arm for arm in result["ratio_to_none"] if arm != "none"]
    if not arms:
        return
    live = list(result["ratio_to_none"][arms[0]]["rollout_s"]["by_live"])
    colours = colours_of(arms)
    places, width = np.arange(len(live)), 0.8 / len(arms)
    with figure(path, 2, (10, 3.6)) as (ratios, passes):
        for i, arm in enumerate(arms):
            at = places + (i - (len(arms) - 1) / 2) * width
            shown = {"width": width, "color": colours[arm], "label": label(arm, result.get("variant_of", {}))}
            ratios.bar(at, [result["ratio_to_none"][arm]["rollout_s"]["by_live"][n] for n in live], **shown)
            passes.bar(at, [result["arms"][arm]["by_live"][n] for n in live], **shown)
        ratios.axhline(1.0, color="0.4", linewidth=1, linestyle="--")
        ratios.set(title="Rollout time / none", xlabel="live requests")
        passes.set(title="Tokens per target pass", xlabel="live requests")
        for axes in (ratios, passes):
            axes.set_xticks(places, live)
        ratios.figure.legend(*ratios.get_legend_handles_labels(), loc="outside right upper")
