"""Page tables: where the kept tokens live."""
