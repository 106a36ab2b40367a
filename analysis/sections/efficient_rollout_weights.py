"""EfficientRollout, its drafters: which tokens of the policy's own text copies in 4 and 8 bits and an EAGLE-3 head
predict."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Section, Table
from analysis.sections.drafting import named, numbers

NAMES = {"w8": "W8", "w4": "W4", "eagle3": "EAGLE-3"}
LENGTHS = ("3", "5", "7")  # gamma
RELIABLE = 0.03  # the largest error of the probabilities of coupled drafts that counts as reliable


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Show tau (tokens per cycle of drafting and verifying) by draft length, by age of the drafter, by position and by
    temperature, and how reliable the probabilities of drafted tokens are."""
    result = read.result(runs["counts"])
    found, by_temperature = result["drafters"], result["by_temperature"]
    paper, depth = published["er_w4_w8"]["data"]["tau"], published["er_eagle_depth"]["data"]
    draw(found, folder / "reliability.png")
    return Section(
        title,
        f"{result['positions']} positions of the small policy's responses after an epoch of training, T = "
        f"{next(iter(by_temperature))}. A draft begins at every place; no engine runs. EAGLE-3 unrolled 3 tokens. "
        "Older: made from the policy before that epoch; for EAGLE-3 that is the frozen head, and the fresh one learned "
        "online.",
        differs="The paper's learning rate is 5e-7, ours 5e-5, so an epoch makes more of a difference. EAGLE-3 is "
        "too poor for drafts at scale 1 where T is high; an engine learns to sharpen it.",
        figures=["reliability.png"],
        table=lengths_table(found, paper),
        more_tables=[freshness_table(found), position_table(found, depth), temperature_table(by_temperature)],
        orderings=orderings(found, by_temperature),
    )


def lengths_table(found: Mapping[str, Any], paper: Mapping[str, Any]) -> Table:
    """Return tau for drafts of 3, 5 and 7 tokens, for coupled drafts and for drafts of likeliest tokens."""
    cells = []
    for key, name in NAMES.items():
        of_key = found[key]
        cells.append(
            [
                name,
                numbers(paper[name]) if name in paper else "2.1 / - / - (7B, main table)",
                numbers([of_key["tau"][k] for k in LENGTHS]),
                numbers([of_key["tau_likeliest"][k] for k in LENGTHS]),
                f"{of_key['coupled']:.4f}",
                f"{of_key['one_minus_tv']:.4f}",
            ]
        )
    header = ["tau at gamma 3 / 5 / 7", "paper, 7B", "ours, coupled", "ours, likeliest tokens", "coupled: accepted"]
    return Table([*header, "1 - TV"], cells)


def freshness_table(found: Mapping[str, Any]) -> Table:
    """Return the acceptance of fresh drafters, and of drafters made before an epoch of training."""
    cells = []
    for key, name in NAMES.items():
        fresh, older = found[key], found[f"{key}, older"]
        cells.append(
            [
                name,
                f"{fresh['coupled']:.4f}",
                f"{older['coupled']:.4f}",
                numbers([fresh["tau"][k] for k in LENGTHS]),
                numbers([older["tau"][k] for k in LENGTHS]),
            ]
        )
    header = ["freshness", "accepted, fresh", "accepted, older", "tau at 3 / 5 / 7, fresh", "tau at 3 / 5 / 7, older"]
    return Table(header, cells)


def position_table(found: Mapping[str, Any], depth: Mapping[str, Any]) -> Table:
    """Return tau by the position of a draft in the response: ours for drafts of 7 tokens, and the paper's for drafts of
    3 tokens by EAGLE-3 on the 7B."""
    begins = [begin for begin, _, _ in found["w8"]["by_position"]]
    cells = []
    for key in (*NAMES, "eagle3, older"):
        taus = {begin: tau for begin, _, tau in found[key]["by_position"]}
        label = NAMES.get(key, "EAGLE-3, older")
        cells.append([label, *(f"{taus[begin]:.2f}" if begin in taus else "" for begin in begins)])
    before = depth["before_adaptation"]["Qwen2.5-7B"]
    bins = ", ".join(f"{name}: {tau:.2f}" for name, tau in zip(depth["depth_bins"], before, strict=True))
    cells.append([f"paper, EAGLE-3 on 7B: {bins}", *[""] * len(begins)])
    return Table(["tau by position in the response, from", *map(str, begins)], cells)


def temperature_table(by_temperature: Mapping[str, Any]) -> Table:
    """Return the acceptance of drafts of likeliest tokens, and of coupled drafts (drawn with the verifier's noise), by
    temperature."""
    cells = [
        [
            f"T = {temperature}, {name}",
            f"{of_t['drafters'][key]['argmax']:.4f}",
            f"{of_t['drafters'][key]['coupled']:.4f}",
            f"{of_t['drafters'][key]['one_minus_tv']:.4f}",
            numbers([of_t["drafters"][key]["tau_argmax"], of_t["drafters"][key]["tau_coupled"]]),
            f"{of_t['drafters'][key]['by_depth'][0]:.4f} ({of_t['drafters'][key]['scale']})",
            f"{of_t['drafters'][key]['reliability']['error']:.4f}",
        ]
        for temperature, of_t in by_temperature.items()
        for key, name in NAMES.items()
    ]
    header = [
        "temperature",
        "likeliest: accepted",
        "coupled",
        "1 - TV",
        "tau at 7: likeliest / coupled",
        "accepted at the scale that is learned",
        "error of probabilities",
    ]
    return Table(header, cells)


def orderings(found: Mapping[str, Any], by_temperature: Mapping[str, Any]) -> list[Ordering]:
    """Return the paper's claims, and this project's claims about coupled drafts, with verdicts."""
    tau = {name: [found[key]["tau"][k] for k in LENGTHS] for key, name in NAMES.items()}
    gap = {name: found[key]["coupled"] - found[f"{key}, older"]["coupled"] for key, name in NAMES.items()}
    errors = {name: found[key]["reliability"]["error"] for key, name in NAMES.items()}
    gains = {
        name: {
            t: of_t["drafters"][key]["coupled"] - of_t["drafters"][key]["argmax"] for t, of_t in by_temperature.items()
        }
        for key, name in NAMES.items()
    }
    positions = [value for _, _, value in found["eagle3, older"]["by_position"]]
    return [
        Ordering(
            "W8 drafts better than W4 at every length",
            all(eight > four for eight, four in zip(tau["W8"], tau["W4"], strict=True)),
            f"W8 {numbers(tau['W8'])}, W4 {numbers(tau['W4'])}",
        ),
        Ordering(
            "W4 drafts better than EAGLE-3 at 3 tokens",
            tau["W4"][0] > tau["EAGLE-3"][0],
            named({name: tau[name][0] for name in ("W4", "EAGLE-3")}),
        ),
        Ordering(
            "tau of copies rises with the draft length",
            all(a < b for name in ("W8", "W4") for a, b in pairwise(tau[name])),
            f"W8 {numbers(tau['W8'])}, W4 {numbers(tau['W4'])}",
        ),
        Ordering("fresh drafts are accepted more often than older ones", min(gap.values()) > 0, named(gap, 4)),
        Ordering(
            "tau of a head from before training falls along the response",
            positions[-1] < positions[0] if len(positions) > 1 else None,
            numbers(positions),
        ),
        *(
            Ordering(
                f"coupled drafts of {name} are accepted more often than likeliest tokens at every T",
                min(gains[name].values()) > 0,
                ", ".join(f"T = {temperature}: {gain:+.3f}" for temperature, gain in gains[name].items()),
            )
            for name in NAMES.values()
        ),
        Ordering(
            f"probabilities of coupled drafts are right within {RELIABLE}",
            max(errors.values()) < RELIABLE,
            named(errors, 4),
        ),
    ]


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw tau by draft length, and the reliability diagram: accepted share by predicted probability."""
    colour = colours_of(list(NAMES))
    with figure(path, panels=2) as (lengths, reliability):
        for key, name in NAMES.items():
            for variant, line in ((key, "-"), (f"{key}, older", ":")):
                taus = found[variant]["tau"]
                label = name if variant == key else f"{name}, older"
                lengths.plot([int(k) for k in taus], list(taus.values()), line, color=colour[key], label=label)
            bins = found[key]["reliability"]["bins"]
            sizes = [max(8.0, n**0.5) for n, _, _ in bins]
            reliability.scatter(
                [p for _, p, _ in bins], [a for _, _, a in bins], s=sizes, color=colour[key], label=name, alpha=0.8
            )
        reliability.axline((0, 0), slope=1, color="0.6", linewidth=1)
        lengths.set(
            xlabel="drafted tokens", ylabel="tokens per pass", ylim=(1, None), title="Acceptance by draft length"
        )
        reliability.set(
            xlabel="probability given before", ylabel="accepted", xlim=(0, 1.02), ylim=(0, 1.05), title="Coupled drafts"
        )
        lengths.legend(fontsize=7)
        reliability.legend()
