"""Folders in Hugging Face's layout, one file per family."""
