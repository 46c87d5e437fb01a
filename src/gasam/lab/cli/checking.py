"""The command `gasam doctor`, which checks the walk on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    device: Annotated[
        str | None, typer.Option(help="Check this device, such as `cpu` or `cuda:0`. Default: the accelerator, if any.")
    ] = None,
) -> None:
    """Check versions, the walk in every type and the restore on this machine, in under a minute.

    Send the output with a bug report. The exit code is 1 if something failed.
    """
    from gasam.doctor import main

    raise typer.Exit(main([] if device is None else ["--device", device]))
