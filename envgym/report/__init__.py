"""Reports: the records that a viewer shows, and one static page that shows them.

`build` turns trajectories, samples and metrics into records, `from_run` gathers those of a run directory, and
`write_report` turns records into a page. This package knows nothing of policies and training.
"""

from envgym.report.build import build_comparison, build_episode, build_evaluation, build_metric_row
from envgym.report.build_tree import build_tree
from envgym.report.bundle import write_report
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    Declared,
    EpisodeData,
    EvaluationData,
    Meta,
    MetricRow,
    NodeData,
    PassRates,
    ReportData,
    SegmentData,
    TreeData,
    TurnData,
)

__all__ = [
    "TRAIN",
    "ComparisonData",
    "Declared",
    "EpisodeData",
    "EvaluationData",
    "Meta",
    "MetricRow",
    "NodeData",
    "PassRates",
    "ReportData",
    "SegmentData",
    "TreeData",
    "TurnData",
    "build_comparison",
    "build_episode",
    "build_evaluation",
    "build_metric_row",
    "build_tree",
    "write_report",
]
