"""Pictures of apps and clusters for a terminal."""
