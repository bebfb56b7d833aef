"""The container: partition tasks, what decides when they run, and the loop that runs them."""
