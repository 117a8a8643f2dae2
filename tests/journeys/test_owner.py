"""An owner's first hours: docs/owners, with workers that run as services."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moerge_proto.evaluations import RESULTS
from moerge_proto.progress import Obstacle
from support.evaluations import result
from support.federation import Federation, eventually, federation_of
from support.models import expert, texts
from support.processes import ended, start_worker
from support.terminal import Shell
from support.transcripts import Part, block

pytestmark = pytest.mark.slow


class Machine:
    """An owner's machine, with an expert, its texts and a worker's home."""

    def __init__(self, made: Federation, domain: str, seed: int, settings: str) -> None:
        self.folder = made.folder / domain
        self.member = made.join(domain, expert(self.folder / "expert", seed, apart=0.001))
        self.text = self.folder / "text"
        self.text.mkdir()
        texts(self.text / "a.jsonl", seed, documents=700)
        self.home = self.folder / ".moerge" / f"worker-{domain}"
        self.home.mkdir(parents=True)
        (self.home / "token").write_text(self.member.token)
        places = {"https://moerge.example.org": made.server.url, "/srv/law": str(self.folder), '"law"': f'"{domain}"'}
        for old, new in places.items():
            settings = settings.replace(old, new)
        shutil.copytree(made.seed, self.folder / "seed")
        settings = settings.replace("[policy]", "[policy]\nmin_documents = 100")
        (self.home / "worker.toml").write_text(settings)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    @contextmanager
    def works(self) -> Iterator[None]:
        """A worker runs as a service, without a terminal."""
        worker = start_worker(["worker", "run", "--home", str(self.home)], {}, self.folder / "log")
        try:
            yield
        finally:
            worker.terminate()
            ended(worker, 60)

    def says(self, text: str) -> None:
        eventually(lambda: text in self.log(), 300)


def asked(said: str) -> str:
    """The digits of what waits for the owner's answer; empty if nothing does."""
    match = re.search(r"waits for your answer: ([0-9a-f]{8})", said)
    return match[1] if match else ""


def test_the_owner_s_pages(tmp_path: Path) -> None:
    settings = block("docs/owners/start.md", "toml")
    auto = settings.replace('mode = "ask"', "evaluation_sums = true\ntask_results = true")
    with federation_of(tmp_path) as made, Shell(tmp_path / "law") as law, Shell(tmp_path / "art") as art:
        owner = Machine(made, "law", 1, f"held_out_share = 0.2\n{auto}")
        with owner.works():
            owner.says("under body")
            eventually(lambda: made.operator.contributors().contributed == ["law"], 300)
            version = made.solve().number
            owner.says(f"evaluated version {version}")
        assert "under body" in law.types("moerge worker history")
        with Part("docs/owners/watch.md", "What was served") as part:
            said = law.types(part.next("moerge worker history --log"))
            head = next(line.removeprefix("head: ") for line in said.splitlines() if line.startswith("head: "))
            assert "0 problems" in law.types(part.next("moerge worker history --log --head", {"7:9f2c": head}))

        asking = Machine(made, "art", 2, settings)
        with asking.works(), Part("docs/owners/policy.md", "Asking first") as part:
            line = part.next("moerge worker status")
            first = asked(art.repeats(line, lambda said: asked(said) != ""))
            eventually(lambda: Obstacle.ASKS_OWNER in [item.obstacle for item in made.operator.progress()])
            assert "waits for the owner's approval" in " ".join(made.moerge("progress", COLUMNS="300").split())
            assert "approved: art" in art.types(part.next("moerge worker approve", {"3f9a0c21": first}))
            second = asked(art.repeats(line, lambda said: asked(said) not in ("", first)))
            assert "refused: art" in art.types(part.next("moerge worker refuse", {"3f9a0c21": second}))
        assert [contribution.domain for contribution in made.operator.contributions()] == ["law"]

        with Part("docs/owners/machines.md", "Before it starts") as part:
            said = law.types(part.next("moerge worker check", {"medicine": "law"}))
            assert not re.search("(?m)^no ", said)

        with Part("docs/owners/evaluate.md", "Score versions on held-out documents") as part:
            law.types(f"export MOERGE_COORDINATOR={made.server.url} MOERGE_TOKEN={owner.member.token}")
            assert "law-owner" in law.types(part.next("moerge version table", {"3": str(version)}))

        with Part("docs/owners/evaluate.md", "Results on tasks") as part:
            (owner.folder / "results.json").write_bytes(RESULTS.dump_json([result()]))
            assert "not reported" in law.types(part.next("moerge worker evaluate", {"3": str(version)}))
        text = json.loads((owner.text / "a.jsonl").read_text().splitlines()[0])["text"]
        held = [path for path in (made.server.home / "blobs").rglob("*") if path.is_file()]
        assert held
        assert not any(text.encode() in path.read_bytes() for path in held)
