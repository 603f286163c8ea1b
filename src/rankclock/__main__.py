"""`python -m rankclock`, and so `torchrun ... -m rankclock verify`."""

from rankclock.cli.main import run

if __name__ == "__main__":
    run()
