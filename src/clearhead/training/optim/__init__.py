"""Optimisers, schedules and learning rates by layer."""
