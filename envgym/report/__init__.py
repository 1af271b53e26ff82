"""Reports: the records that a viewer shows, and one static page that shows them.

This package knows nothing of runs on disk, policies or training; `build` turns trajectories and samples into records,
`write_report` turns records into a page.
"""

from envgym.report.build import build_comparison, build_episode, build_evaluation, build_metric_row
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    Declared,
    EpisodeData,
    EvaluationData,
    Meta,
    MetricRow,
    PassRates,
    ReportData,
    SegmentData,
    TurnData,
)
from envgym.report.write import write_report

__all__ = [
    "TRAIN",
    "ComparisonData",
    "Declared",
    "EpisodeData",
    "EvaluationData",
    "Meta",
    "MetricRow",
    "PassRates",
    "ReportData",
    "SegmentData",
    "TurnData",
    "build_comparison",
    "build_episode",
    "build_evaluation",
    "build_metric_row",
    "write_report",
]
