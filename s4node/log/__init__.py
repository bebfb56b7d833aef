"""The embedded log: streams on this machine's disk that can be read again."""
