"""Augmentation of images on the device, keyed by (seed, step, row)."""
