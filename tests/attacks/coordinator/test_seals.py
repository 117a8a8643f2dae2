"""A coordinator that works with one approved owner: copies of other owners' seals open in no part but their own."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from moerge.masks.keeper import Keeper, KeeperError
from moerge_proto.masks import MaskedPart, MasksRequest, Seals
from support.masked import MaskedOwner, keeper_of

ART, CODE, LAW, MUSIC, SEA, HOSTILE, *FRIENDS = (
    MaskedOwner(domain) for domain in ("art", "code", "law", "music", "sea", "wine", "xylem", "yeast")
)
HONEST = ART, CODE, LAW, MUSIC, SEA


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return keeper_of(tmp_path, [*HONEST, HOSTILE, *FRIENDS])


@pytest.fixture
def parts(keeper: Keeper) -> dict[str, MaskedPart]:
    return {owner.domain: owner.part([keeper.public_key]) for owner in (*HONEST, *FRIENDS)}


def copied(part: MaskedPart, thief: MaskedOwner, owners: int = 3, **change: Any) -> MaskedPart:
    """A part with another owner's seals, which the thief signs in its own name."""
    blank = Seals(owners=owners, sealed=part.seals.sealed, signature="0" * 128)
    forged = part.model_copy(update={"owner": thief.name, "seals": blank, **change})
    signature = thief.key.sign(forged.message()).hex()
    return forged.model_copy(update={"seals": blank.model_copy(update={"signature": signature})})


def require_refused(keeper: Keeper, parts: list[MaskedPart]) -> None:
    with pytest.raises(KeeperError, match="no seed of this part is sealed for this keeper"):
        keeper.seeds(MasksRequest(parts=parts))


@pytest.mark.parametrize("domain", ["same", "other"])
def test_two_sums_do_not_differ_by_one_owner(keeper: Keeper, parts: dict[str, MaskedPart], domain: str) -> None:
    """Their difference would be the mask of art, with each part in one answered request of three owners."""

    def stolen(*owners: MaskedOwner) -> list[MaskedPart]:
        change: dict[str, Any] = {} if domain == "same" else {"domain": HOSTILE.domain}
        return [copied(parts[owner.domain], HOSTILE, **change) for owner in owners]

    require_refused(keeper, [parts["code"], parts["law"], *stolen(MUSIC, SEA, ART)])
    require_refused(keeper, [parts["music"], parts["sea"], *stolen(CODE, LAW)])


def test_three_owners_that_work_together_get_no_mask_of_a_fourth(keeper: Keeper, parts: dict[str, MaskedPart]) -> None:
    require_refused(keeper, [copied(parts["art"], HOSTILE), *(parts[owner.domain] for owner in FRIENDS)])


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "wine-owner"},
        {"domain": "wine"},
        {"body": "8" * 64},
        {"contribution": "8" * 64},
        {"hidden_size": 5},
        {"layers": 3},
        {"owners": 3},
    ],
)
def test_a_seal_opens_for_what_its_owner_signed_only(keeper: Keeper, change: dict[str, Any]) -> None:
    """Not even if the owner's own key signs other facts with it, or fewer owners of a sum."""
    forged = copied(ART.part([keeper.public_key], owners=4), ART, **{"owners": 4, **change})
    keeper.approve(ART.request.model_copy(update={"owner": forged.owner}), replace=True)
    others = [
        owner.part([keeper.public_key], body=forged.body, hidden=forged.hidden_size) for owner in (CODE, LAW, SEA)
    ]
    others = [other.model_copy(update={"layers": forged.layers}) for other in others]
    require_refused(keeper, [forged, *others])


def test_a_contribution_is_in_one_cohort(keeper: Keeper) -> None:
    """An owner may sign the same file again, for another domain or body."""
    keeper.seeds(MasksRequest(parts=[owner.part([keeper.public_key]) for owner in (ART, CODE, LAW)]))
    first = ART.part([keeper.public_key]).contribution
    for body, owner in product(("7" * 64, "8" * 64), (ART, MUSIC)):
        again = owner.part([keeper.public_key], contribution=first, body=body)
        others = [item.part([keeper.public_key], body=body) for item in (SEA, FRIENDS[0])]
        with pytest.raises(KeeperError, match="or its contribution is in cohort 1"):
            keeper.seeds(MasksRequest(parts=[again, *others]))
