"""Hello in five lines: greets every name."""
