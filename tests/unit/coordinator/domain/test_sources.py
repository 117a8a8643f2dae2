"""Files are fetched from below the allowed sources, written in the one plain way."""

import pytest

from moerge_coordinator.domain.sources import require_allowed
from moerge_coordinator.problems import RefusedError
from moerge_proto.problems import ProblemType

PREFIXES = ["https://models.example/team", "https://other.example/"]


@pytest.mark.parametrize(
    "url", ["https://models.example/team", "https://models.example/team/a/b", "https://other.example/x"]
)
def test_what_lies_below_a_source_is_allowed(url: str) -> None:
    require_allowed(url, PREFIXES, "source")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://models.example/team-2/a", ProblemType.FORBIDDEN),
        ("https://models.example", ProblemType.FORBIDDEN),
        ("https://models.example.attacker.example/team/a", ProblemType.FORBIDDEN),
        ("http://models.example/team/a", ProblemType.FORBIDDEN),
        ("https://models.example/team/../x", ProblemType.INVALID_REQUEST),
        ("https://models.example/team/%2e%2e/x", ProblemType.INVALID_REQUEST),
        ("https://models.example@attacker.example/team/a", ProblemType.INVALID_REQUEST),
        ("file:///etc/passwd", ProblemType.INVALID_REQUEST),
    ],
)
def test_what_leads_elsewhere_is_refused(url: str, kind: ProblemType) -> None:
    with pytest.raises(RefusedError) as caught:
        require_allowed(url, PREFIXES, "source")
    assert (caught.value.kind, caught.value.where) == (kind, "source")


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.org/models", "http://127.0.0.1:8000/other", "http://127.0.0.1:8000/modelsX",
        "http://127.0.0.1:8000/models/../other", "http://127.0.0.1:8000/models/%2e%2e/other",
        "http://127.0.0.1:8000/models/%2E%2E%2Fother", "http://127.0.0.1:8000/models/..%5cother",
        "http://127.0.0.1:8000/models\\..\\other", "http://127.0.0.1:8000/models//x", "http://127.0.0.1:8000/models/./x",
        "http://127.0.0.1:8000@evil.example/models", "http://user:word@127.0.0.1:8000/models",
        "http://127.0.0.1:8000/models?x", "http://127.0.0.1:8000/models#x", "file:///etc/passwd", "ftp://127.0.0.1/models",
        "//127.0.0.1:8000/models", "models/law", "", "HTTP://127.0.0.1:8000/models", "http://127.1:8000/models",
        "http://localhost:8000/models", "http://[::1]:8000/models", "http://127.0.0.1:8000/models/\n", "gopher://x/",
        "http://127.0.0.1:8000/models/\u2025/x", "data:text/plain,x", "http://127.0.0.1:8000/models/x y",
    ],
)  # fmt: skip
def test_no_other_writing_of_an_address_is_allowed(url: str) -> None:
    with pytest.raises(RefusedError):
        require_allowed(url, ["http://127.0.0.1:8000/models"], "source")
