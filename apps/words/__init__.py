"""Counts words: lines of text in, totals out."""
