"""The rate of owners' chunks."""

from moerge_coordinator.domain.upload_rate import UploadRate
from moerge_coordinator.problems import RefusedError
from support.rows import Clock


def test_the_rate_is_the_settings_whatever_the_sizes() -> None:
    clock = Clock()
    rate, come, waited = UploadRate(100, clock), 0, 0
    for size in (1, 250, 70, 1000, 30, 99) * 20:
        while True:
            try:
                rate.take("law", size)
                break
            except RefusedError as refused:
                seconds = refused.retry_after or 0
                clock.later(seconds=seconds)
                waited += seconds
        come += size
        rate.take(f"other than law {come}", size)
    assert come / 100 - 15 < waited < 1.15 * come / 100
