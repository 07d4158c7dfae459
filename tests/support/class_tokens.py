"""A vision transformer whose attention differs between heads and layers, and an image for it."""

import torch

import clearhead as ch

SIZES = {"classes": 4, "size": 16, "patch": 4, "width": 24, "depth": 3, "heads": 3}


def ours(**options):
    torch.manual_seed(0)
    model = ch.build("vit", **SIZES, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def pixels(height=16, width=16):
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
