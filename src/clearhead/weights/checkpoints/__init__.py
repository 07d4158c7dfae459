"""Reads checkpoints and unfinished runs of a training, and the weights that a training starts from."""
