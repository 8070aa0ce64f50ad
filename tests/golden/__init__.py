"""Golden files: every persisted format as the release that introduced it wrote it, kept for ever."""
