"""The stages of the pipeline: bounded queues of batches, and the credit that fills them."""
