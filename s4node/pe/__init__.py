"""Processing elements: the class that users write, its prototype, and the instances of a task."""
