"""train/: objectives, optimiser, schedule, distribution, checkpoints, and the one loop that uses them."""
