"""python -m gasam: the command `gasam`."""

from gasam.cli import main

if __name__ == "__main__":
    main()
