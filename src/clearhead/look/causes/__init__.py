"""What causes an answer: heads switched off, activation patching, the logit lens, logit attribution."""
