"""The wire format."""
