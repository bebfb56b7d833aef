"""A keyed count in eight lines: how often each user has clicked."""
