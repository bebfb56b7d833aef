"""Where what tasks put goes."""
