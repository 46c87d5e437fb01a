"""The exception for mistakes that the user can correct."""

from __future__ import annotations


class InputError(ValueError):
    """Invalid input. The message is one sentence that names the input, what is allowed and the cure.

    The command line prints only this message, without a traceback.
    """


class InterruptedWithoutResumeError(Exception):
    """The user interrupted a command that does not continue where it stopped. The message says how far it came."""
