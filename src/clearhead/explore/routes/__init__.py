"""The addresses that the page asks."""
