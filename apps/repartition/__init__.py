"""Rewrites a stream, by another key and with another number of partitions."""
