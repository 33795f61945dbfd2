"""What a time-out inside of `logging` leaves behind."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.support.logging_locks import release_locks


def test_locks_of_logging_are_free_after_a_time_out(caplog: pytest.LogCaptureFixture) -> None:
    lock, handler = vars(logging)["_lock"], caplog.handler
    lock.acquire()
    handler.acquire()
    release_locks()
    logger = logging.getLogger(f"{__name__}.new")
    thread = threading.Thread(target=logger.warning, args=["heard"], daemon=True)
    thread.start()
    thread.join(5)
    assert "heard" in caplog.text
