"""The entry point of the command `gasam` and its exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    try:
        for number in SIGNALS:
            signal.signal(number, _interrupt)
        sys.exit(_run())
    except KeyboardInterrupt:  # while the commands are imported, or a second signal while the first one is handled
        sys.exit(_say_interrupted())
    except Exception as error:
        if not _followed_a_signal(error):
            raise
        sys.exit(_say_interrupted())


def _followed_a_signal(error: BaseException) -> bool:
    """Whether the error came while a signal was handled, which can break the state of a lock, for example."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _followed_a_signal(before))


def _run() -> int:
    try:
        from typer import TyperException

        from gasam.lab.cli import measuring, training, use  # noqa: F401  # they add their commands
        from gasam.lab.cli.options import app, refusal
    except ModuleNotFoundError as error:
        return _say(f"the command needs {error.name}: run `pip install 'gasam[lab]'`", 2)
    from gasam.lab.errors import InputError, RunFailedError

    try:
        code = app(prog_name="gasam", standalone_mode=False)
    except TyperException as error:
        return _say(refusal(error), 2)
    except InputError as error:
        return _say(str(error), 2)
    except RunFailedError as error:
        return _say(f"failed: {error}; the same command repeats only what failed", 1)
    except OSError as error:
        place = error.filename or "a file"
        return _say(f"{place}: {error.strerror or error}: name another folder, or check permissions and space", 2)
    return _say_interrupted() if code == INTERRUPTED else code or 0


def _say_interrupted() -> int:
    """Say how to continue. More signals would only break the sentence."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return _say("interrupted; run the same command to continue", INTERRUPTED)


def _say(sentence: str, code: int) -> int:
    print(f"gasam: {sentence}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise inside `_run` only: nothing would catch an interrupt that comes while `main` handles an earlier one."""
    while frame is not None:
        if frame.f_code is _run.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back
