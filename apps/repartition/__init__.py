"""Writes a stream anew, by another key and with another number of partitions."""
