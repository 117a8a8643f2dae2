"""The pool: short texts of many kinds that come with the library, as uncounted text before an owner's own."""

from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("pool.txt")
_BETWEEN = "\n%\n"


@cache
def pool_texts() -> tuple[str, ...]:
    """The texts of the pool, in the order of its file, which `moerge_proto.statistics_file.POOL` names."""
    return tuple(_FILE.read_text(encoding="utf-8").removesuffix("\n").split(_BETWEEN))
