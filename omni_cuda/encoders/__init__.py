"""The vision and audio towers, taken from transformers."""
