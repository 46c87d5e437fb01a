"""Analyses of finished runs. All files of this folder are imported, and each kind of analysis registers itself."""

import importlib
import pkgutil

from gasam.lab.analyses.analysis import KINDS, Analysis, restored
from gasam.lab.analyses.jobs import measure_all

__all__ = ["KINDS", "Analysis", "measure_all", "restored"]

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
