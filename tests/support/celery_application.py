"""The same application as tasks of Celery's, whose workers are forked after the import."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery  # type: ignore[import-untyped]  # it has no types

from tests.support import application

folder = Path(os.environ["CELERY_FOLDER"])
app = Celery("photos", broker="filesystem://", backend=f"file://{folder}")
app.conf.update(
    broker_transport_options={
        name: str(folder) for name in ("data_folder_in", "data_folder_out", "control_folder")
    },
    worker_prefetch_multiplier=1,
    worker_max_tasks_per_child=3,
)
draw = app.task(application.draw)
