"""Processes that end with the one that started them; it loads nothing, so that they do so from their start."""

import os
import signal
import threading
from multiprocessing import parent_process


def follow_parent() -> None:
    """Leave an interrupt to the process that waits, and end when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end_with_it() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()
