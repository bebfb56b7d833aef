"""Events that fail or kill: found, left out, kept."""
