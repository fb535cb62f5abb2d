"""A seeded world of streams to measure memory on: sights and sounds, and questions about them."""
