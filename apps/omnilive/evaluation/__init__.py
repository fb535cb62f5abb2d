"""How well a model answers about streams under a cache policy and budget: ``omnilive eval``."""
