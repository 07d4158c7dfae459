"""What a training writes, read: checkpoints, unfinished runs, pretrained weights."""
