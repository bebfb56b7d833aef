"""Commits, rollback and dead letters."""
