"""Who runs what, and where."""
