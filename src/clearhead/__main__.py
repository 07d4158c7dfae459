"""`python -m clearhead` is the `clearhead` command; torchrun starts it in this way."""

from .cli import main

if __name__ == "__main__":
    main()
