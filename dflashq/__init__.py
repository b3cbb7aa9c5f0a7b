"""A fleet that answers prompts with the target model itself, to train DFlash drafters."""

__version__ = "0.1.0"
