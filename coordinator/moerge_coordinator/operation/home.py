"""A coordinator's home folder: settings, database and the first operator token."""

from contextlib import closing
from pathlib import Path
from shlex import quote

from sqlalchemy import select

from moerge.client.version_key import read_public_key
from moerge.errors import MoergeError
from moerge.files import atomic_file, private_folder
from moerge_coordinator.domain import version_keys
from moerge_coordinator.domain.tokens import make_token
from moerge_coordinator.settings import FILE, Settings, read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.tables import TokenRow
from moerge_coordinator.storage.version_key import KEY_FILE, keep_public_key, private_key
from moerge_proto.owners import NewToken, Role, Token

_TEMPLATE = """\
# The coordinator's settings. `moerge coordinator serve` reads them at its start; `check` checks them.
# Environment variables such as MOERGE_COORDINATOR_PORT override this file.
host = "127.0.0.1"
port = 8080
# tls_certificate = "/path/to/certificate.pem"
# tls_key = "/path/to/key.pem"
# database = "postgresql://USER:PASSWORD@HOST/NAME"  # instead of a SQLite file in this folder
# owner_bytes = 1_000_000_000_000  # maximum per owner
# owner_bytes_per_second = 50_000_000
# abandoned_after_hours = 72
# audit_days = 365  # then rows of the audit log, with people's names and addresses, are removed; at least 30
# promotion_max_fall = 2.0  # maximum fall of a domain's score, in points, without an operator's override
# promotion_signed = true  # champion is a signed version

# [webhook]  # signed notices of events
# url = "https://hooks.example.org/moerge"
# secret_file = "/etc/moerge/webhook-secret"  # "whsec_" and the base64 of 32 random bytes

# [s3]  # instead of a folder here; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
# bucket = "moerge"
# endpoint = "https://s3.example.org"  # only for stores other than AWS; clients also download from it
# region = "us-east-1"
# prefix = "production"
"""


def initialise(home: Path, public_key: Path | None = None) -> Token:
    """Makes a coordinator's home folder, its first operator token, and its key. Existing settings stay.

    Args:
        public_key: file with the public key of a version key that is elsewhere; None makes a key.
    """
    given = None if public_key is None else read_public_key(public_key)
    private_folder(home)
    settings = read_settings(home) if (home / FILE).exists() else Settings(home=home)
    with closing(open_database(settings.database)) as database, database.transaction("make first token") as session:
        if session.scalar(select(TokenRow).limit(1)) is not None:
            todo = f"run: moerge coordinator serve {quote(str(home))}"
            raise MoergeError("is already a coordinator's home", where=str(home), todo=todo)
        if given is not None:
            if private_key(home) is not None:
                todo = "leave `version_key` out, or move the file to the machine that signs"
                raise MoergeError("the home has a private key", where=str(home / KEY_FILE), todo=todo)
            keep_public_key(home, given)
        version_keys.agree(session, home)
        token = make_token(session, NewToken(role=Role.OPERATOR))
    if not (home / FILE).exists():
        with atomic_file(home / FILE) as file:
            file.write(_TEMPLATE.encode())
    return token
