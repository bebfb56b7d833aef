"""A cluster and a log under a seeded adversary: what it may do, and what must be true after all."""
