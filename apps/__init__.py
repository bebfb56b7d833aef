"""Example apps; each folder is one app."""
