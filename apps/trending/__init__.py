"""Trending topics: text through Spark into windows of PEs, and back as a DataFrame."""
