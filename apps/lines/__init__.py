"""Events from ``nc``: an adapter that takes lines of text over TCP."""
