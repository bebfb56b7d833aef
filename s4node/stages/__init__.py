"""Bounded queues, and what they do when they are full."""
