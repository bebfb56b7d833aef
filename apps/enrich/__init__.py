"""Asks a service about every event, many at a time, each user in order."""
