"""Values as text and HTML: numbers with units, times, digests, Markdown."""

from datetime import UTC, datetime

from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from rich.filesize import decimal

from moerge_proto.signatures import in_groups

STEPS = 10  # of a colour map
_SPANS = ((60.0, "min"), (3600.0, "h"), (86400.0, "d"))
_markdown = MarkdownIt("js-default")  # shows HTML, and links of unsafe schemes, as text


def ago(when: datetime | None, now: datetime | None = None) -> Markup:
    """A time relative to now, with the absolute one on hover."""
    if when is None:
        return Markup('<span class="none">never</span>')
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    return Markup('<time datetime="{0}" title="{1:%Y-%m-%d %H:%M:%S} UTC">{2}</time>').format(
        when.isoformat(), when, _words(seconds)
    )


def _words(seconds: float) -> str:
    if abs(seconds) < _SPANS[0][0]:
        return "just now" if seconds >= 0 else "in a moment"
    text = duration(abs(seconds))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def duration(seconds: float) -> str:
    """A duration in one unit."""
    if seconds < _SPANS[0][0]:
        return f"{seconds:.0f} s"
    size, unit = next(span for span in reversed(_SPANS) if seconds >= span[0])
    return f"{seconds / size:.0f} {unit}"


def digest(value: str | None) -> Markup:
    """The first characters of a digest, whole on hover."""
    return Markup('<code class="digest" title="{0}">{1}</code>').format(value, value[:10]) if value else Markup("")


def size(value: int) -> Markup:
    """A number of bytes in decimal units, exact on hover."""
    return Markup('<span title="{0:,} bytes">{1}</span>').format(value, decimal(value))


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def step(value: float, low: float, high: float) -> str:
    """The class of a colour map's step, q0 to q9."""
    share = (value - low) / (high - low) if high > low else 1.0
    return f"q{min(max(int(share * STEPS), 0), STEPS - 1)}"


def markdown(text: str) -> Markup:
    """Markdown as HTML, below a heading of the page; a leading block of YAML between `---` lines is left out."""
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    tokens = _markdown.parse(text)
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    return Markup(_markdown.renderer.render(tokens, _markdown.options, {}))  # noqa: S704  # rendered with HTML disabled


def lines(text: str) -> Markup:
    return Markup("<br>").join(escape(line) for line in text.splitlines())


FILTERS = {
    "ago": ago,
    "bytes": size,
    "digest": digest,
    "groups": in_groups,
    "duration": duration,
    "lines": lines,
    "markdown": markdown,
    "number": number,
}
"""The templates' filters."""
