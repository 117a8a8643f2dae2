"""What a folder's version has to do with grants: its experts, and those that its reader may no longer use."""

from pathlib import Path

from moerge.client.client import Client
from moerge.client.signatures import require_valid
from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.problems import ProblemType
from moerge_proto.records import read_record
from moerge_proto.version_signatures import SignedVersion
from moerge_proto.versions import Lineage


def part_line(folder: Path) -> str:
    """A line about the experts of a part."""
    record = read_record(folder)
    domains = ", ".join(record.domains) if isinstance(record, Lineage) else ""
    return f"the part with the experts that are granted to you: {domains}"


def require_up_to_date(client: Client, folder: Path, signed: SignedVersion) -> None:
    """Requires that the caller may still use the verified version in a folder.

    Raises:
        MoergeError: an expert's grant has ended, the version is no longer served, or its key is revoked.
    """
    require_valid(signed, list(client.version_keys()))
    try:
        client.signed_card(signed.name)
    except CoordinatorError as error:
        if error.type not in (ProblemType.NOT_GRANTED.urn, ProblemType.GONE.urn):
            raise
        todo = "stop using it, and run: moerge pull champion"
        raise MoergeError(
            f"out of date: {error.problem().detail}", where=str(folder), todo=f"{todo} {folder}"
        ) from error
