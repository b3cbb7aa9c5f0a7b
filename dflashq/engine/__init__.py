"""The inference server of a worker: its profile, launch, supervision, checks and clients."""
