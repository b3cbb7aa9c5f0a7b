"""A third stage, made of this folder alone: it copies completions line by line."""
