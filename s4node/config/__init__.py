"""Configuration: every key, checked and rendered."""
