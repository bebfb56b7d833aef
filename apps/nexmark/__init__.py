"""Queries of the Nexmark benchmark: windows, joins and timers by the time of events."""
