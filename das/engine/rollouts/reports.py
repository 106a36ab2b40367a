"""Engines' reports about a rollout: their part about single requests is left out, and several become one."""

from collections.abc import Mapping
from typing import Any

COUNTS = (
    *("passes", "drafted", "draft_rounds", "branches", "copied_blocks", "draft_passes", "draft_rows"),
    *("decode_steps", "tail_steps", "live_sum", "drafted_steps", "history_tokens", "head_rests"),
)

OF_REQUESTS = ("requests", "predicted_length")


def of_engine(report: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's report without what it says of single requests, whose responses bring their own costs."""
    return {name: value for name, value in report.items() if name not in OF_REQUESTS}


def merged_reports(reports: Mapping[str, Mapping[str, Any]], slowest: str) -> dict[str, Any]:
    """Counts are summed. The timeline of passes and the times are those of the engine that the others wait for. The
    calibration error is the largest. Alarms name their engine.

    reports: of das_end_rollout, by a name of the engine, such as "rank 0". slowest: one of these names.
    """
    merged = dict(reports[slowest])
    for name in COUNTS:
        if name in merged:
            merged[name] = sum(report[name] for report in reports.values())
    errors = [report["calibration_error"] for report in reports.values() if "calibration_error" in report]
    if errors:
        merged["calibration_error"] = max(errors)
    merged["alarms"] = [f"{name}: {alarm}" for name, report in reports.items() for alarm in report.get("alarms", [])]
    return merged


def of_engines(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The reports of all engines, by their numbers, as one, without what they say of single requests."""
    named = {f"engine {number}": of_engine(report) for number, report in reports.items()}
    return merged_reports(named, max(named, key=lambda name: max(named[name]["step_time_s"], default=0.0)))
