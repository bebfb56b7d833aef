"""One container: tasks, their loop, inputs, outputs, commits."""
