"""`python -m gtpool`, which is how `torchrun -m gtpool` starts it."""

from gtpool.cli import main

if __name__ == "__main__":
    main()
