"""Processes that end with the one that started them; it loads nothing, so that a worker can begin with it."""

import os
import threading
import time


def end_with(parent: int) -> None:
    """End this process within a second of that one, which started it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
