"""The s4 command."""
