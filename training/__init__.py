"""Training of the embedded model: a small Qwen2.5-Omni thinker that knows the stream world."""
