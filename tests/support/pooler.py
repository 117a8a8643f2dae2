"""Poolers before PostgreSQL: one in transaction mode, whose connections share a session, and one that refuses all."""

import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

_PROTOCOL = 196608
_QUERY, _SYNC, _END, _READY = b"Q", b"S", b"X", b"Z"
_IDLE = b"I"


def _read(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := stream.recv(count - len(data))):
        data += more
    return data


def _message(stream: socket.socket) -> bytes:
    """A message with its type; empty at the end of the stream."""
    head = _read(stream, 5)
    return head + _read(stream, struct.unpack("!i", head[1:])[0] - 4) if head else b""


class _Session:
    """A session of PostgreSQL without password, with the server's answer to its start."""

    def __init__(self, address: str) -> None:
        given = conninfo_to_dict(address)
        self.lock, self._stream = threading.Lock(), socket.socket(socket.AF_UNIX)
        self._stream.connect(str(Path(str(given["host"])) / ".s.PGSQL.5432"))
        start = f"user\0{given['user']}\0database\0{given['dbname']}\0\0".encode()
        self._stream.sendall(struct.pack("!ii", len(start) + 8, _PROTOCOL) + start)
        self.greeting = b"".join(self._answer())

    def close(self) -> None:
        self._stream.close()

    def _answer(self) -> Iterator[bytes]:
        while message := _message(self._stream):
            yield message
            if message[:1] == _READY:
                return

    def transaction(self, client: socket.socket) -> bool:
        """Passes a transaction's messages; False at the connection's end."""
        message = _message(client)
        with self.lock:
            while message and message[:1] != _END:
                self._stream.sendall(message)
                if message[:1] in (_QUERY, _SYNC):
                    answer = list(self._answer())
                    client.sendall(b"".join(answer))
                    if answer[-1][5:] == _IDLE:
                        return True
                message = _message(client)
            return False


@contextmanager
def pooler(address: str) -> Iterator[str]:
    """The address of a pooler in front of a database."""
    session = _Session(address)

    def serve(client: socket.socket) -> None:
        client.sendall(session.greeting)
        while session.transaction(client):
            pass

    with closing(session), _served(serve) as place:
        yield f"{place}/{conninfo_to_dict(address)['dbname']}"


@contextmanager
def refusing(message: str) -> Iterator[str]:
    """The address of a server or pooler that answers each start with an error."""
    fields = f"SFATAL\0C08P01\0M{message}\0\0".encode()

    def serve(client: socket.socket) -> None:
        client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    with _served(serve) as place:
        yield f"{place}/moerge"


@contextmanager
def _served(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            protocol = 0
            while protocol != _PROTOCOL:
                if protocol:
                    self.request.sendall(b"N")  # no encryption
                if not (head := _read(self.request, 8)):
                    return
                size, protocol = struct.unpack("!ii", head)
                _read(self.request, size - len(head))
            serve(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"postgresql://postgres@127.0.0.1:{server.server_address[1]}"
        server.shutdown()
