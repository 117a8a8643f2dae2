"""Times, colours and Markdown as text and HTML."""

from datetime import UTC, datetime, timedelta

import pytest

from moerge_coordinator.dashboard.formatting import ago, markdown, step

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "just now"), (90, "2 min ago"), (7200, "2 h ago"), (3 * 86400, "3 d ago"), (-3600, "in 1 h")],
)
def test_times_are_relative_and_absolute_on_hover(seconds: float, words: str) -> None:
    when = NOW - timedelta(seconds=seconds)
    assert words in ago(when, NOW)
    assert f'title="{when:%Y-%m-%d %H:%M:%S} UTC"' in ago(when, NOW)


def test_colour_steps_cover_the_scale() -> None:
    assert [step(value, 0, 1) for value in (-1, 0, 0.1, 0.99, 1, 2)] == ["q0", "q0", "q1", "q9", "q9", "q9"]


def test_markdown_renders_no_html_and_no_odd_links() -> None:
    text = markdown(
        "---\nlicense: mit\n---\n# Title\n\n<script>x</script> [a](javascript:x) | [b](https://example.org)"
    )
    assert "license" not in text
    assert "<h3>Title</h3>" in text
    assert "<script>" not in text
    assert 'href="javascript' not in text
    assert 'href="https://example.org"' in text
