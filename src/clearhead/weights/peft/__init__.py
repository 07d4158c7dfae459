"""LoRA adapters in PEFT's layout."""
