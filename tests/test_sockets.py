"""No test connects beyond this machine."""

import socket

import pytest


def test_connections_and_names_end_on_this_machine() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
    with pytest.raises(OSError, match="a test connects to 192"), socket.socket() as client:
        client.connect(("192.0.2.1", 80))
    with pytest.raises(OSError, match=r"a test looks up example\.org"):
        socket.create_connection(("example.org", 443), timeout=1)
