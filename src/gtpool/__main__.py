"""Entry point of `python -m gtpool` and `torchrun -m gtpool`."""

from gtpool.cli import main

if __name__ == "__main__":
    main()
