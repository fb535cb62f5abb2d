"""The towers that turn pictures and sound into embeddings."""
