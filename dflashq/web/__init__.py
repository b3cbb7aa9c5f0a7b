"""The monitor: pages and a JSON API over `operations.monitoring`."""
