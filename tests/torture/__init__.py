"""A cluster under a seeded adversary: what it may do to nodes, and what must be true after all."""
