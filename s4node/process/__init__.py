"""What runs as a process."""
