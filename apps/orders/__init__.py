"""Sums of a topic of Kafka by minute, written to another topic."""
