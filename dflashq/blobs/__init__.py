"""Objects on S3: put if absent, get, list."""
