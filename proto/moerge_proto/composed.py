"""Files that are stored as a header and ranges of other files."""

import json
from collections.abc import Iterable, Iterator, Sequence

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.ranges import Ranges, read_bytes

_LENGTH = 8


class Segment(Message):
    """The bytes of a file from `start` to `end`."""

    sha256: Digest
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def slot_segments(file: Ranges, sha256: Digest, slots: Sequence[int] | None, of: int) -> list[Segment]:
    """The segments of a safetensors file that are the tensors of these slots, in the file's order.

    `slots`: None: the file has one expert, all of which counts; else every tensor has `of` experts, one behind another.
    """
    length = int.from_bytes(read_bytes(file, 0, _LENGTH), "little")
    begin = _LENGTH + length
    if slots is None:
        return [Segment(sha256=sha256, start=begin, end=file.size)]
    header = json.loads(read_bytes(file, _LENGTH, length))
    spans = sorted(item["data_offsets"] for name, item in header.items() if name != "__metadata__")
    pieces = []
    for start, end in spans:
        each = (end - start) // of
        pieces += [(begin + start + slot * each, begin + start + (slot + 1) * each) for slot in slots]
    return [Segment(sha256=sha256, start=start, end=end) for start, end in _joined(pieces)]


def _joined(pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The pieces, neighbours as one."""
    last: tuple[int, int] | None = None
    for start, end in pieces:
        if last is not None and last[1] == start:
            last = last[0], end
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last
