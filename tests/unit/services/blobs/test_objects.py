"""Parts of uploads to S3."""

import pytest

from moerge.blobs.objects import MOST_PARTS, PART, SMALL, part_bytes


@pytest.mark.parametrize("size", [SMALL + 1, MOST_PARTS * PART, MOST_PARTS * PART + 1, 113 * 10**9, 5 * 2**40])
def test_a_file_of_any_size_has_as_many_parts_as_s3_allows(size: int) -> None:
    part = part_bytes(size)
    assert part >= PART
    assert -(-size // part) <= MOST_PARTS
