"""Weights of timm, torchvision and Keras."""
