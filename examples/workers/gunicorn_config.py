"""gunicorn --config gunicorn_config.py workers.photos:application."""

from __future__ import annotations

from workers.photos import engine

preload_app = True
workers = 4


def post_fork(server: object, worker: object) -> None:
    """Leave the application's connections to the parent; the ticket pool does so by itself."""
    engine.dispose(close=False)
