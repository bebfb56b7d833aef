"""Where replayable events come from: the contract of inputs, and its implementations."""
