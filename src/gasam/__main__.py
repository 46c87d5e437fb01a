"""Runs the command `gasam` as `python -m gasam`."""

from gasam.lab.cli import main

if __name__ == "__main__":
    main()
