"""Data that a seed makes up: sequences, vectors, scenes."""
