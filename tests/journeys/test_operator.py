"""First hours of an operator and two owners, as README and pages have them, then docs/operators."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors import safe_open

from moerge.errors import MoergeError
from moerge.models.families.family import HEAD
from moerge_proto.evaluations import RESULTS
from moerge_proto.recipes import SolveOptions
from moerge_workers.outgoing.owner_key import read_owner_key
from support.dashboard import signed_in
from support.evaluations import result
from support.federation import Federation, federation_of
from support.models import expert, seed_model, texts
from support.processes import Coordinator
from support.terminal import Shell
from support.transcripts import ROOT, Part

pytestmark = pytest.mark.slow
ADDRESS = r"http://127\.0\.0\.1:\d+"
BEARER = r"moerge_[\w-]+"
DIGEST = r"\b[0-9a-f]{64}\b"
JOIN = r"moerge-join-1\.\S+"
REQUEST = "moerge-join-1.eyJjcmVhdGVkIjoi"
OWNERS = {"medicine": "hospital", "law": "court"}


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[0]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Shells and servers; all end with the test."""
    with ExitStack() as made:
        yield made


def owner(folder: Path, seed: int) -> Shell:
    """An owner's machine, with an expert, its texts and a copy of the seed."""
    folder.mkdir()
    seed_model(folder / "seed", apart=0.001)
    expert(folder / "expert", seed, apart=0.001)
    (folder / "text").mkdir()
    texts(folder / "text" / "a.jsonl", seed, documents=1100)
    return Shell(folder)


def test_the_readme_s_three_parties_from_init_to_a_text(tmp_path: Path, stack: ExitStack) -> None:
    """Laws 1 and 6, as a reader sees them."""
    at = stack.enter_context
    serving, operator = (at(Shell(tmp_path / "operator", MOERGE_COORDINATOR_PORT="0")) for _ in range(2))
    owners = {domain: at(owner(tmp_path / domain, seed)) for seed, domain in enumerate(OWNERS, 1)}
    consumer = at(Shell(tmp_path / "consumer"))
    seed_model(tmp_path / "operator" / "seed", apart=0.001)
    home = str(tmp_path / "srv" / "moerge")

    def next_of(begins: str, *parts: Part, here: Mapping[str, str] | None = None) -> str:
        """The next command of each page, which must be the same."""
        [line] = {part.next(begins, here) for part in parts}
        return line

    def each_owner(line: str) -> dict[str, str]:
        """Domain -> the line as that owner types it."""
        return {domain: line.replace("medicine", domain).replace("hospital", OWNERS[domain]) for domain in OWNERS}

    with (
        Part("docs/operators/start.md", "The first hour") as looked,
        Part("docs/owners/start.md", "The first hour") as owned,
        Part("README.md", "Three parties") as part,
    ):
        part.names = looked.names = owned.names = {"/srv/moerge": home, "org/name@rev": "seed"}
        secret = found(BEARER, serving.types(next_of("moerge coordinator init", part, looked)))
        assert "of seed is current" in serving.types(next_of("moerge coordinator seed", part, looked))
        assert "no problems" in serving.types(looked.next("moerge coordinator check"))
        url = found(ADDRESS, serving.starts(next_of("moerge coordinator serve", part, looked), ADDRESS))
        part.names |= {"http://127.0.0.1:8080": url, "https://moerge.example.org": url}

        requests = {}
        for domain, line in each_owner(next_of("moerge worker init", part, owned)).items():
            said = owners[domain].types(line)
            assert "fingerprint" in said
            requests[domain] = found(JOIN, said)

        operator.types(next_of("export", part, looked, here={"MOERGE_TOKEN=...": f"MOERGE_TOKEN={secret}"}))
        approve, tokens = next_of("moerge owner approve", part, looked), {}
        for domain, request in requests.items():
            said = operator.types(approve.replace(REQUEST, request))
            assert "Fingerprint:" in said
            tokens[domain] = found(BEARER, said)

        export = next_of("export", part, owned)
        for domain, token in tokens.items():
            owners[domain].types(export.replace("MOERGE_TOKEN=...", f"MOERGE_TOKEN={token}"))
        assert not re.search("(?m)^no ", owners["medicine"].types(owned.next("moerge worker check")))
        ran = {}
        for domain, line in each_owner(next_of("moerge worker run", part, owned)).items():
            ran[domain] = owners[domain].starts(line, "waiting for the")
        said_in_order(ran["medicine"], printed_by_run())
        beside = at(Shell(tmp_path / "medicine"))
        assert "waiting" in beside.types(owned.next("moerge worker status"))
        assert "parts" in beside.types(owned.next("moerge worker history"))

        said = operator.repeats(looked.next("moerge expert list"), lambda said: said.count("ready") == 2)
        assert "Apache-2.0" in said
        found(r"(?m)^1$", operator.types(next_of("moerge version solve", part, looked)))
        said = operator.types(looked.next("moerge version show 1"))
        assert "hospital" in said
        assert "court" in said
        assert "not evaluated" in operator.types(looked.next("moerge version table 1"))
        assert "champion is version 1" in operator.types(next_of("moerge version promote 1", part, looked))
        token = found(BEARER, operator.types(looked.next("moerge token add reader")))

        consumer.types(f"export MOERGE_COORDINATOR={url} MOERGE_TOKEN={token}")
        consumer.types(part.next("moerge pull champion my-model"))
        assert (tmp_path / "consumer" / "my-model" / "README.md").is_file()
        shutil.copy(tmp_path / "srv" / "moerge" / "version-key.pub", tmp_path / "consumer")
        with Part("docs/operators/trust.md", "Check a version") as checked:
            assert "signed by key" in consumer.types(checked.next("moerge pull champion my-model"))
            assert "files as signed by key" in consumer.types(checked.next("moerge verify my-model"))
        assert "generated_text" in consumer.types(part.next("python -c"))
        talks(consumer, part.next("moerge chat"))
        (tmp_path / "consumer" / "story.txt").write_text("The capital of")
        with Part("docs/consumers/chat.md", "Talk to a version") as talking:
            talks(consumer, talking.next("moerge chat"))
            assert "tokens: " in consumer.types(talking.next("moerge chat"))

        for domain, shell in owners.items():
            assert "contributed" in shell.stops()
            sent_sums_alone(tmp_path / "srv" / "moerge", shell.folder, domain)
        coordinator = Coordinator(tmp_path / "srv" / "moerge", secret)
        coordinator.url = url
        with coordinator.client() as client:
            signed = client.version_signatures(1)
            assert {row.owner for row in signed} == set(OWNERS.values())
            assert all(row.is_genuine() for row in signed)

        assert "medicine is withdrawn" in operator.types(part.next("moerge expert withdraw medicine"))


def printed_by_run() -> list[str]:
    """The messages of `worker run` in the table of docs/owners/start.md."""
    page = (ROOT / "docs" / "owners" / "start.md").read_text(encoding="utf-8")
    rows = page.partition("| `run` prints |")[2].partition("\n\n")[0].splitlines()[2:]
    return [text for row in rows for text in re.findall("`([^`]+)`", row.split("|")[1])]


def said_in_order(said: str, texts: Sequence[str]) -> None:
    """Requires these texts in this order; `…` stands for others."""
    pattern = ".*".join(".*".join(map(re.escape, text.split("…"))) for text in texts)
    assert re.search(pattern, said, re.DOTALL), said


def talks(person: Shell, line: str) -> None:
    """A conversation of one message."""
    person.starts(line, ">$")
    person.type(b"The capital of\n")
    person.waits(r"(?s)\n> .*\n>$")
    person.type(b"\x04")
    assert "tokens: " in person.ends()


def sent_sums_alone(coordinator: Path, owner: Path, domain: str) -> None:
    """Law 1: no text, key, attention or embedding is at the coordinator, no body is here, the home is the owner's."""
    keys, home = owner / ".moerge", owner / ".moerge" / f"worker-{domain}"
    text = json.loads((owner / "text" / "a.jsonl").read_text().splitlines()[0])["text"]
    secrets = [text.encode(), read_owner_key(keys / f"{OWNERS[domain]}.pem").private_bytes_raw()]
    with safe_open(owner / "expert" / "model.safetensors", framework="numpy") as file:
        weights = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118  # no iterable
    secrets += [content for name, content in weights.items() if "self_attn" in name or "embed" in name]
    held = [path.read_bytes() for path in (coordinator / "blobs").rglob("*") if path.is_file()]
    assert any(weights[HEAD] in content for content in held)
    assert not any(secret in content for content in held for secret in secrets)
    assert not (home / "bodies").exists(), "no body was downloaded"
    assert [path.name for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077] == []


def fail(federation: Federation) -> None:
    """A solve that fails, because a contribution's file is missing meanwhile."""
    digest = next(item.digest for item in federation.operator.contributions() if item.active)
    blob = federation.server.home / "blobs" / digest[:2] / digest
    lost = blob.rename(federation.folder / "lost")
    with pytest.raises(MoergeError):
        federation.solve(options=SolveOptions(ridge_lambda=7))
    lost.rename(blob)


def test_the_operator_s_pages_in_their_order(tmp_path: Path, stack: ExitStack) -> None:
    at = stack.enter_context
    made = at(federation_of(tmp_path, "law", "art"))
    server = made.server
    operator = at(Shell(tmp_path / "operator", **server.environment()))
    hospital = at(Shell(tmp_path / "hospital", MOERGE_COORDINATOR=server.url))

    with Part("docs/deploying.md", "Kubernetes") as part:
        assert "fingerprint" in hospital.types(part.next("moerge worker init"))

    with Part("docs/operators/start.md", "The seed") as part:
        part.names = {"/srv/moerge": str(server.home)}
        folder = {"org/name@rev": str(made.seed)}
        assert "of seed is current" in operator.types(part.next("moerge coordinator seed", folder))

    _, of_art = made.contribute(made.body())
    made.solve()
    with Part("docs/operators/owners.md", "Admit owners") as part:
        ask = "moerge worker init --owner hospital --domain medicine --domain nursing"
        request = found(JOIN, hospital.types(ask))
        operator.types(part.next("moerge owner approve", {REQUEST: request}))
        assert "hospital" in operator.types(part.next("moerge owner list"))
        assert "public key" in operator.types(part.next("moerge owner show hospital"))
        assert "revoked" in operator.types(part.next("moerge owner revoke hospital"))
        hospital.types("mv .moerge/hospital.pem old.pem")
        request = found(JOIN, hospital.types(ask))
        said = operator.types(part.next("moerge owner approve", {"moerge-join-1.eyJvd25lciI6Imgi": request}))
        hospital.types(f"export MOERGE_TOKEN={found(BEARER, said)}")

    with Part("docs/operators/owners.md", "Experts") as part:
        made.add("film")
        assert "film" in operator.types(part.next("moerge expert list"))
        assert "film is withdrawn" in operator.types(part.next("moerge expert withdraw", {"law": "film"}))
        assert "Removed" in operator.types(part.next("moerge expert purge", {"law": "film"}))
        del made.members["film"]
        operator.types(part.next("moerge contribution withdraw", {"67b22c2264b8": of_art.digest[:12]}))

    made.contribute(made.body(), "art", first=3)
    made.contribute(made.body(), split="tuning", first=9)
    with Part("docs/operators/versions.md", "Solve and promote versions") as part:
        two = {"--minimum 3": "--minimum 2"}
        for names, number in (({}, 2), (two, 2), ({}, 2), ({}, 3)):  # nobody is missing, so three make the same version
            found(rf"(?m)^{number}$", operator.types(part.next("moerge version solve", names)))
        made.operator.promote("champion", 2)
        assert made.solve(options=SolveOptions(ridge_lambda=1)).number == 4
        assert "champion is version 3" in operator.types(part.next("moerge version promote 3"))
        assert "champion is version 2" in operator.types(part.next("moerge version rollback"))
        assert "better on law" in operator.types(part.next("moerge version history"))
        assert "Version 2 -> 4" in operator.types(part.next("moerge version compare champion 4"))
        assert "audited" in operator.types(part.next("moerge version note 3"))
        assert "version 1 is retired" in operator.types(part.next("moerge version retire 1"))
        assert "not evaluated" in operator.types(part.next("moerge version table champion"))
        (operator.folder / "results.json").write_bytes(RESULTS.dump_json([result()]))
        assert "1 result on tasks reported" in operator.types(part.next("moerge version evaluate 3"))

    with Part("docs/operators/versions.md", "Loss on public texts") as part:
        found(r"(?m)^\d+$", operator.types(part.next("moerge version solve --accept-loss")))

    with Part("docs/operators/trust.md", "The version key") as part:
        part.names = {"/srv/moerge": str(server.home)}
        old = " ".join(operator.types(part.next("moerge version keys")).split()[:2])
        assert f"was: {old}" in operator.types(part.next("moerge version rotate-key"))
        assert "version 3 is signed by key" in operator.types(part.next("moerge version sign 3"))
        assert "revoked" in operator.types(part.next("moerge version revoke-key", {"3f2a91c0": old.replace(" ", "")}))

    with Part("docs/operators/trust.md", "A key on another machine") as part:
        part.names = {"/srv/moerge": str(tmp_path / "another-home")}
        operator.types(part.next("openssl genpkey"))
        operator.types(part.next("openssl pkey"))
        assert "unsigned until" in operator.types(part.next("moerge coordinator init"))

    with Part("docs/operators/owners.md", "Progress") as part:
        assert "Progress" in operator.types(part.next("moerge progress"))

    with Part("docs/operators/owners.md", "Tokens") as part:
        found(BEARER, operator.types(part.next("moerge token add operator")))
        row = found(r"(?m)^.*anna.*$", operator.types(part.next("moerge token list")))
        here = {" 7": f" {found('[0-9]+', row)}"}
        found(BEARER, operator.types(part.next("moerge token rotate", here)))
        assert "revoked" in operator.types(part.next("moerge token revoke", here))

    with Part("docs/operators/keep.md", "Backups") as part:
        part.names = {"/srv/moerge": str(server.home), "/mnt/backup/moerge": str(tmp_path / "backup")}
        assert "databases and settings" in operator.types(part.next("moerge coordinator backup"))
        server.stop()
        server.home.rename(tmp_path / "lost home")
        assert "restored to" in operator.types(part.next("moerge coordinator restore"))
        assert "0 damaged" in operator.types(part.next("moerge coordinator verify"))

    serving = at(Shell(tmp_path / "operator", MOERGE_COORDINATOR_PORT="0"))
    with Part("docs/dashboard.md", "The dashboard") as part:
        part.names = {"/srv/moerge": str(server.home)}
        server.url = found(ADDRESS, serving.starts(part.next("moerge coordinator serve"), ADDRESS))
        with signed_in(server) as browser:
            assert "Version 2" in browser.get("/versions").text

    made.operator = at(server.client())
    fail(made)
    operator.types(f"export MOERGE_COORDINATOR={server.url}")
    with Part("docs/operators/keep.md", "Watching it") as part:
        row = found(r"(?m)^.*failed.*$", operator.types(part.next("moerge workflow list")))
        operator.types(part.next("moerge workflow retry", {"version-4f1c22": found(r"version-\S+", row)}))
