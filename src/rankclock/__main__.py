"""The entry of `rankclock`, `python -m rankclock`, and so of `torchrun ... -m rankclock verify`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line; an interrupt while it is still being loaded is one line too."""
    try:
        from rankclock.cli.main import run
    except KeyboardInterrupt:
        sys.stderr.write("rankclock: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
