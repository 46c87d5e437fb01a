"""The entry point of the command `gasam` and its exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
from types import FrameType

NEEDED = (
    "accelerate",
    "filelock",
    "jinja2",
    "matplotlib",
    "num2words",
    "numpy",
    "optuna",
    "pandas",
    "platformdirs",
    "pydantic",
    "rich",
    "sacrebleu",
    "safetensors",
    "sklearn",
    "scipy",
    "tokenizers",
    "transformers",
    "typer",
    "vl_convert",
)
INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    try:
        for number in SIGNALS:
            signal.signal(number, _interrupt)
        _run()
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


def _run() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(_say(f"the command needs {', '.join(missing)}: run `pip install 'gasam[lab]'`", 2))
    from gasam.lab.cli.commands import app
    from gasam.lab.errors import InputError, InterruptedWithoutResumeError

    try:
        app()
    except InputError as error:
        sys.exit(_say(str(error), 2))
    except InterruptedWithoutResumeError as error:
        sys.exit(_say(str(error), INTERRUPTED))
    except OSError as error:
        place = error.filename or "a file"
        sys.exit(_say(f"{place}: {error.strerror or error}: name another folder, or check permissions and space", 2))
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _say_interrupted()
        raise


def _say_interrupted() -> int:
    """Say how to continue. More signals would only break the sentence."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return _say("interrupted; run the same command to continue", INTERRUPTED)


def _say(sentence: str, code: int) -> int:
    """Print the sentence in one line, or on a terminal in lines that end between words."""
    text = f"gasam: {sentence}"
    if sys.stderr.isatty():
        from gasam.lab.cli.display import wrapped

        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise inside `_run` only: nothing would catch an interrupt that comes while `main` handles an earlier one."""
    while frame is not None:
        if frame.f_code is _run.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back
