"""What a worker does to a batch."""
