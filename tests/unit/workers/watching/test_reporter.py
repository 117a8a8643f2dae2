"""Reports of a worker's progress."""

import socket
from pathlib import Path

from moerge_workers.settings import Settings
from moerge_workers.watching.reporter import reporting
from moerge_workers.watching.status import Status


def test_a_worker_survives_an_absent_coordinator(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        given = {"coordinator": url, "token": "t", "domain": "law", "expert": tmp_path, "data": ["x"], "home": tmp_path}
        settings = Settings.model_validate({**given, "policy": {"progress": True}})
        with reporting(settings, Status(tmp_path, "law", url), 0.05):
            for _ in range(3):
                place.accept()[0].close()
    with reporting(settings, status := Status(tmp_path, "law", url), 0.05):
        pass  # no server
    assert status.state.heard is None
