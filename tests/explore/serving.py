"""The explorer on a socket, in a thread of the tests' own process."""

import threading
import time

import uvicorn


class Uvicorn:
    """The app on a socket, in a thread of this process."""

    def __init__(self, app, **options):
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", **options))
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        until = time.monotonic() + 20
        while not self.server.started and time.monotonic() < until:
            time.sleep(0.01)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(10)
