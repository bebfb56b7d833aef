"""How far each input has been processed, and where reading begins."""
