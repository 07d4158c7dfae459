"""Recording and changing activations: addresses, hooks, taps inside attend(), the Tape, edits."""
