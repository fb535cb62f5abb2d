"""Pixels to patches, sound to log-mel, units to tokens with positions."""
