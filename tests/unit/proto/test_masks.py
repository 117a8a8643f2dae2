"""Masks: their bytes, the binding of sealed seeds, and the owner's signature over all that a keeper decides by."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from pydantic import ValidationError

from moerge_proto.masks import MasksRequest, keeper_key, mask
from support.masked import MaskedOwner

KEY = X25519PrivateKey.generate()


def test_a_mask_is_the_keystream_of_its_layer() -> None:
    seed = bytes(range(32))
    assert mask(seed, 0, 2).tobytes().hex() == "f29000b62a499fd0a9f39a6add2e7780"  # AES-256 of a zero block (FIPS 197)
    blocks = b"".join((3).to_bytes(8, "big") + block.to_bytes(8, "big") for block in range(500))
    block_by_block = Cipher(algorithms.AES256(seed), modes.ECB()).encryptor().update(blocks)  # noqa: S305  # the reference
    assert mask(seed, 3, 999).tobytes() == block_by_block[: 8 * 999]
    assert np.array_equal(mask(seed, 3, 999)[:7], mask(seed, 3, 7))


def test_a_sealed_seed_is_for_one_keeper_and_one_owner() -> None:
    owner, other = MaskedOwner("law"), X25519PrivateKey.generate()
    part, public = owner.part([keeper_key(KEY), keeper_key(other)]), owner.request.public_key
    first, second = (part.seed(key, public) for key in (KEY, other))
    assert first is not None
    assert second is not None
    assert first != second
    assert part.seed(X25519PrivateKey.generate(), public) is None
    assert part.seed(KEY, MaskedOwner("law").request.public_key) is None
    swapped = dict(zip(part.seals.sealed, reversed(part.seals.sealed.values()), strict=True))
    other_way = part.seals.model_copy(update={"sealed": swapped})
    assert part.model_copy(update={"seals": other_way}).seed(KEY, public) is None


@pytest.mark.parametrize("change", ["owner", "domain", "body", "contribution", "hidden_size", "layers"])
def test_the_signature_covers_every_field(change: str) -> None:
    owner = MaskedOwner("law")
    part = owner.part([keeper_key(KEY)])
    public = owner.request.public_key
    assert part.is_genuine(public)
    value = getattr(part, change)
    other = value + 1 if isinstance(value, int) else "a" * len(value)
    assert not part.model_copy(update={change: other}).is_genuine(public)


def test_the_signature_covers_seeds_and_the_least_owners() -> None:
    owner, keeper = MaskedOwner("law"), keeper_key(KEY)
    part = owner.part([keeper], owners=5)
    for change in ({"owners": 3}, {"sealed": owner.part([keeper]).seals.sealed}):
        forged = part.model_copy(update={"seals": part.seals.model_copy(update=change)})
        assert not forged.is_genuine(owner.request.public_key)
        assert forged.seed(KEY, owner.request.public_key) is None


def test_a_request_is_of_one_body_and_names_each_contribution_once() -> None:
    law, art = (MaskedOwner(domain) for domain in ("law", "art"))
    parts = [law.part([keeper_key(KEY)]), art.part([keeper_key(KEY)], body="8" * 64)]
    for wrong in (parts, parts[:1] * 2):
        with pytest.raises(ValidationError):
            MasksRequest(parts=wrong)
