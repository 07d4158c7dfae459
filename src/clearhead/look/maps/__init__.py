"""Attention maps: lazy weights, exact statistics of them, and what is read from them (rollout, class tokens, sinks)."""
