"""The life of a container."""
