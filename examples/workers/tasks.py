"""celery --app workers.tasks worker --concurrency 4."""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-untyped]  # it has no types
from celery.signals import worker_process_init  # type: ignore[import-untyped]  # it has no types

from workers.photos import add_photo, engine

app = Celery("photos")
app.config_from_object(os.environ["CELERY_CONFIG"])


def leave_connections_to_parent(**_: object) -> None:
    """The ticket pool does so by itself."""
    engine.dispose(close=False)


worker_process_init.connect(leave_connections_to_parent)
add = app.task(add_photo)
