"""The monitor: a page and a JSON API over `operations.observe`."""
