"""A node: container processes, packages, admin."""
