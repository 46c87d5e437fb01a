"""python -m gasam: the command `gasam`."""

from gasam.lab.cli import main

if __name__ == "__main__":
    main()
