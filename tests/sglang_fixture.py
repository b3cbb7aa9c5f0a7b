"""A real SGLang on the CPU that serves the tiny thinking model, once a session."""
