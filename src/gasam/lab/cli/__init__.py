"""The entry point of the command `gasam` and its exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import importlib.util
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
    "pandas",
    "platformdirs",
    "pydantic",
    "rich",
    "sacrebleu",
    "sklearn",
    "scipy",
    "tokenizers",
    "transformers",
    "typer",
)
INTERRUPTED = 130


def main() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(_say(f"the command needs {', '.join(missing)}: run `pip install 'gasam[lab]'`", 2))
    from gasam.lab.cli.commands import app
    from gasam.lab.errors import InputError

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except InputError as error:
        sys.exit(_say(str(error), 2))
    except OSError as error:
        place = error.filename or "a file"
        sys.exit(_say(f"{place}: {error.strerror or error}: name another folder, or check permissions and space", 2))
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _say("interrupted; run the same command to continue", INTERRUPTED)
        raise


def _say(sentence: str, code: int) -> int:
    print(f"gasam: {sentence}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
