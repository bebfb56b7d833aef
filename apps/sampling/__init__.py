"""An executor of one's own: under load a stage keeps a sample of its events."""
