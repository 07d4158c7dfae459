"""python -m clearhead is the command itself, and so it runs under torchrun."""

from .cli import main

if __name__ == "__main__":
    main()
