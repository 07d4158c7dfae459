"""Which pixels or tokens an answer depends on: gradients, Grad-CAM, occlusion, rollout, and tests of them."""
