"""Joins page views with the profiles of their users."""
