"""How weights begin: drawn, pretrained, or with adapters."""
