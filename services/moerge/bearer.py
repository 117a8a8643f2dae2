"""Bearer tokens, as people give them."""

import re

from moerge.errors import MoergeError

_MADE = re.compile(r"moerge_[\w-]{40,}")
_TODO = "give the token alone, as the command that made it printed it"


def is_bearer_token(text: str) -> bool:
    """Tell whether this is a token of a coordinator, which no message may show."""
    return _MADE.fullmatch(text) is not None


def bearer_token(text: str, where: str) -> str:
    """The token without white space around it; `where` names its variable, option or file.

    Raises:
        MoergeError: the token is empty, or no header can have it. The error never has the token.
    """
    token = text.strip()
    if not token:
        raise MoergeError("the token is empty", where=where, todo=_TODO)
    for place, character in enumerate(token, 1):
        if not "!" <= character <= "~":
            kind = "white space" if character.isspace() else "not a printable ASCII character"
            raise MoergeError(f"character {place} of the token is {kind}", where=where, todo=_TODO)
    return token
