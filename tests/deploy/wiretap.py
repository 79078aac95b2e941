"""What sites send, byte by byte: a door to a port of this machine that keeps what goes through it."""

import contextlib
import socket
import socketserver
import threading
from types import TracebackType
from typing import Self


class Wiretap:
    """Connections to `port` go on to `target`, to be set before the first one comes. sent: by those who connect."""

    def __init__(self) -> None:
        self.target = 0
        self.sent: list[bytes] = []
        tap = self

        class Door(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", tap.target)) as there:
                    back = threading.Thread(target=_pass_on, args=(there, self.request, None), daemon=True)
                    back.start()
                    _pass_on(self.request, there, tap.sent)
                    back.join(5)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Door)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()


def _pass_on(source: socket.socket, target: socket.socket, kept: list[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if kept is not None:
                kept.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
