"""The Celery app: `celery -A workers worker --gpu 0`."""

from workers.app import app

__all__ = ["app"]
