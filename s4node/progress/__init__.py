"""How far each input has been processed."""
