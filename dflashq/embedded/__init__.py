"""Real servers for one machine: Redis protocol, S3 protocol, and SGLang on the CPU."""
