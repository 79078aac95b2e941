"""What goes between sites and server, byte by byte: a door to a port of this machine that counts, and may keep."""

import contextlib
import socket
import socketserver
import threading
from types import TracebackType
from typing import Self


class Wiretap:
    """Connections to `port` go on to `target`, to be set before the first; one that comes earlier is closed.

    up, down: bytes from and to those who connect.  sent: what they have sent, if it is kept.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.target = self.up = self.down = 0
        self.keep, self.sent = keep, list[bytes]()
        tap = self

        class Door(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", tap.target)) as there:
                    back = threading.Thread(target=tap._pass_on, args=(there, self.request, False), daemon=True)
                    back.start()
                    tap._pass_on(self.request, there, True)
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

    def _pass_on(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):  # one side has gone: so has the connection
            while data := source.recv(1 << 16):
                if up:
                    self.up += len(data)
                    self.sent += [data] if self.keep else []
                else:
                    self.down += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
