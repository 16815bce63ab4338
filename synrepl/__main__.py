"""``python -m synrepl`` is the same as ``synrepl``."""

from synrepl.cli import main

if __name__ == "__main__":
    main(prog_name="synrepl")
