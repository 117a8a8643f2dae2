"""A worker with keepers: its file is masked, and nothing exact stays or leaves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.masks import MaskedPart, Seals, keeper_key, mask
from moerge_proto.signatures import public_key_of
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsFile, gram_length
from moerge_workers.outgoing.owner_key import join_request, read_owner_key
from moerge_workers.settings import Settings
from support.models import texts
from support.stages import POLICY, MemoryClient, contributed

KEYS = [X25519PrivateKey.generate() for _ in range(2)]
MASKS: dict[str, Any] = {"keepers": [keeper_key(key) for key in KEYS], "owners": 4}
ASKS = {**POLICY, "mode": "ask"}


class Sealing(MemoryClient):
    """Keeps the requests."""

    sent: list[NewContribution]

    def contribute(self, new: NewContribution) -> Contribution:
        self.sent = [*getattr(self, "sent", []), new]
        return super().contribute(new)


@pytest.fixture
def client(body: Body, home: Path) -> Sealing:
    join_request(home / "owner.pem", "owner", ["law"])
    return Sealing(body)


def opened(home: Path, manifest: Manifest, new: NewContribution) -> list[bytes | None]:
    """Each keeper's seed of a signed contribution."""
    facts = manifest.model_dump(include={"owner", "domain", "body", "hidden_size", "layers"})
    part = MaskedPart(**facts, contribution=new.sha256, seals=Seals.model_validate(new.masks))
    public = public_key_of(read_owner_key(home / "owner.pem"))
    assert part.is_genuine(public)
    return [part.seed(key, public) for key in KEYS]


def test_a_file_is_the_plain_one_with_masks_that_its_keepers_can_make(
    folder: Path, home: Path, client: Sealing
) -> None:
    contributed(folder, home, client, masks=MASKS)
    assert {path.suffix for path in (home / "contributions").iterdir()} == {".sqlite", ".safetensors", ".seeds"}
    path, new = client.uploaded[-1], client.sent[-1]
    plain_home = home / "plain"
    plain_home.mkdir()
    for name in ("key", "texts.jsonl"):
        (plain_home / name).write_bytes((home / name).read_bytes())
    contributed(folder, plain_home, MemoryClient(client.current), dry_run=True)
    [plain] = (plain_home / "contributions").glob("*.safetensors")
    assert new.masks is not None
    with StatisticsFile(path) as file, StatisticsFile(plain) as exact:
        manifest = file.manifest
        assert isinstance(manifest, RouterManifest)
        assert manifest.model_copy(update={"keepers": []}) == exact.manifest
        seeds = opened(home, manifest, new)
        length = gram_length(manifest.hidden_size)
        for layer in range(manifest.layers):
            words = np.zeros(length + manifest.hidden_size, np.uint64)
            for seed in seeds:
                words += mask(seed or b"", layer, len(words))
            assert np.array_equal(file.gram(layer).view(np.uint64) - words[:length], exact.gram(layer).view(np.uint64))
            assert np.array_equal(
                file.cross(layer).view(np.uint64) - words[length:], exact.cross(layer).view(np.uint64)
            )
    assert new.masks.owners == 4


def test_masks_are_drawn_once_for_a_file_that_waits_for_the_owner(folder: Path, home: Path, client: Sealing) -> None:
    asked = set()
    for _ in range(2):
        assert contributed(folder, home, client, masks=MASKS, policy=ASKS) == []
        [file] = (home / "contributions").glob("*.safetensors")
        asked.add((file.read_bytes(), file.with_suffix(".seeds").read_bytes()))
        assert not list((home / "contributions").glob("*.exact"))
        file.with_suffix(".exact").touch()  # as a kill leaves it
    assert len(asked) == 1


def test_a_file_whose_masking_was_killed_is_masked_with_new_seeds(folder: Path, home: Path, client: Sealing) -> None:
    contributed(folder, home, client, masks=MASKS, policy=ASKS)
    [file] = (home / "contributions").glob("*.safetensors")
    seeds = file.with_suffix(".seeds").read_bytes()
    file.unlink()  # killed after the seeds, before the file
    contributed(folder, home, client, masks=MASKS)
    assert file.with_suffix(".seeds").read_bytes() != seeds
    new = client.sent[-1]
    assert new.masks is not None
    kept = json.loads(file.with_suffix(".seeds").read_bytes())
    with StatisticsFile(file) as masked:
        assert [bytes.fromhex(kept[keeper_key(key)]) for key in KEYS] == opened(home, masked.manifest, new)


def test_contributions_of_a_known_sum_stay_as_they_are(folder: Path, home: Path, client: Sealing) -> None:
    [row] = contributed(folder, home, client, masks=MASKS)
    texts(home / "texts.jsonl", 1, 60)
    first, second = contributed(folder, home, client, masks=MASKS)
    assert (first, second.documents) == (row, 20)
    client.rows = {digest: item.model_copy(update={"cohort": 1}) for digest, item in client.rows.items()}
    for documents in (80, 30):  # more, or fewer
        texts(home / "texts.jsonl", 1, documents)
        assert [item.digest for item in contributed(folder, home, client, masks=MASKS)] == [first.digest, second.digest]
    assert len(client.uploaded) == 2


def test_masks_need_the_owners_key_and_the_seeds(folder: Path, home: Path, client: Sealing) -> None:
    (home / "owner.pem").rename(home / "away")
    with pytest.raises(MoergeError, match="masks need your key"):
        contributed(folder, home, client, masks=MASKS)
    assert client.uploaded == []
    (home / "away").rename(home / "owner.pem")
    [seeds] = (home / "contributions").glob("*.seeds")
    seeds.unlink()
    with pytest.raises(MoergeError, match="seeds: not found"):
        contributed(folder, home, client, masks=MASKS)


@pytest.mark.parametrize(
    "change",
    [
        {"tuning_share": 0.1},
        {"privacy": {"epsilon": 1.0}},
        {"masks": {"keepers": []}},
        {"masks": {**MASKS, "owners": 2}},
        {"masks": {"keepers": ["x"]}},
    ],
)
def test_what_masks_exclude_is_refused_in_the_settings(change: dict[str, Any]) -> None:
    fields = {"coordinator": "", "token": "", "domain": "law", "expert": "e", "data": ["d"], "home": "h"}
    with pytest.raises(ValidationError):
        Settings.model_validate({**fields, "masks": MASKS, **change})
