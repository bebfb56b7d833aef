"""Packages: made, loaded, deployed."""
