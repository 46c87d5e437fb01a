"""The one exception for what a user can mend: its text is one sentence and the command line shows nothing else."""

from __future__ import annotations


class InputError(ValueError):
    """Something given from outside is not as it must be: names it, says what is allowed and the cure."""
