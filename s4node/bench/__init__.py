"""Benchmarks: what ``s4 bench`` measures, each against a limit taken in the same run."""
