"""The run loop and the stages that it feeds."""
