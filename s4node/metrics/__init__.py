"""What a container and its tasks measure, and those who report it."""
