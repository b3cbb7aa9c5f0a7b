"""The inference server of a worker: how it is launched, watched, asked, and what it must be."""
