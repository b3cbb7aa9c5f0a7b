"""What a person, or a worker's clock, asks of the fleet."""
