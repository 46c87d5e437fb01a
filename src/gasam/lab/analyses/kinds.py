"""Every kind of analysis by its name, and an analysis again from the record of one."""

from __future__ import annotations

from typing import Any

from gasam.lab.analyses import Analysis
from gasam.lab.analyses.landscape import Plane, Towards
from gasam.lab.analyses.mixtures import Mixtures
from gasam.lab.analyses.robustness import Robustness
from gasam.lab.analyses.sharpness import Rises
from gasam.lab.analyses.shifted_line import ShiftedLine
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.analyses.substitutions import Substitutions
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysisRecord

KINDS: dict[str, type[Analysis]] = {
    kind.kind: kind for kind in (Robustness, Rises, Spectrum, Plane, Towards, Mixtures, ShiftedLine, Substitutions)
}


def restored(record: AnalysisRecord) -> Analysis:
    """What was measured there, as its options say."""
    if record.kind not in KINDS:
        raise InputError(f"the kind of an analysis must be one of {', '.join(KINDS)}, got {record.kind!r}")
    options: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record.options.items()}
    if isinstance(options.get("norm"), str):
        options["norm"] = float(options["norm"])
    return KINDS[record.kind](**options)
