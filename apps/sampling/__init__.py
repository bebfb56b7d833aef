"""An executor of your own: under load a stage keeps a sample of its events."""
