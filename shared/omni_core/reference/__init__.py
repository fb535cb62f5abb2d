"""Float64 references: the oracles of the backends' tests."""
