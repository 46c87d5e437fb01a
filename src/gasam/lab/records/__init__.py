"""The records of runs and of their analyses: typed objects, checked when they are read from JSON files."""

from gasam.lab.records.contents import (
    AnalysedRun,
    AnalysisRecord,
    DataOfRun,
    RunRecord,
    RunSummary,
    TaskFile,
    configuration_key,
)
from gasam.lab.records.epsilon_source import EpsilonSource
from gasam.lab.records.files import as_json, read, read_all, read_analysis, read_as, write

__all__ = [
    "AnalysedRun",
    "AnalysisRecord",
    "DataOfRun",
    "EpsilonSource",
    "RunRecord",
    "RunSummary",
    "TaskFile",
    "as_json",
    "configuration_key",
    "read",
    "read_all",
    "read_analysis",
    "read_as",
    "write",
]
