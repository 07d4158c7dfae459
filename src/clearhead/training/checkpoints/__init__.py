"""Checkpoints: written in the background, sharded, hashed; and the mean of several."""
