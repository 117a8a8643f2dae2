"""worker.toml: everything that a worker can be told, with the command line before it and the policy above both."""

from pathlib import Path
from typing import Any

import pytest

from moerge.errors import MoergeError
from moerge_proto.recipes import FEDERATED
from moerge_proto.statistics_file import TextBefore
from moerge_workers import settings
from moerge_workers.settings import FILE, Settings, read_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "expert").mkdir()
    (tmp_path / "token").write_text("secret\n")
    write(tmp_path, "")
    return tmp_path


def write(home: Path, more: str) -> None:
    keys = f'coordinator = "https://example.org"\ndomain = "law"\nexpert = "{home / "expert"}"\ndata = ["a.jsonl"]\n'
    (home / FILE).write_text(keys + more)


def read(home: Path, **given: Any) -> Settings:
    return read_settings({"home": home, **given})


def test_command_line_overrides_file_and_token_has_own_file(home: Path) -> None:
    write(home, "tuning_share = 0.1\nslots = 3\n[statistics]\ncontext = 128\nprecision = 'bfloat16'\n")
    given = read(home, slots=2, context=64)
    assert (given.tuning_share, given.slots, given.home) == (0.1, 2, home)
    assert (given.statistics.context, given.statistics.precision) == (64, "bfloat16")
    assert (given.token, read(home, token="other").token) == ("secret", "other")
    assert "secret" not in repr(given)


@pytest.mark.parametrize("content", ["secret", " secret\r\n", "\ufeffsecret\n"])
def test_white_space_around_the_token_in_its_file_is_dropped(home: Path, content: str) -> None:
    (home / "elsewhere").write_text(content, encoding="utf-8")
    write(home, f'token_file = "{home / "elsewhere"}"\n')
    assert [read(home).token] == ["secret"]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"Zq7Kx9 Zq7Kx9", b"Zq7Kx9\x00", b"Zq7Kx9\xff", "Zq7Kx9".encode("utf-16")]
)
def test_an_unusable_token_is_refused_by_the_name_of_its_file(home: Path, content: bytes) -> None:
    (home / "token").write_bytes(content)
    with pytest.raises(MoergeError, match="token is") as caught:
        read(home)
    assert (caught.value.where, "Zq7" in str(caught.value)) == (str(home / "token"), False)


def test_paths_may_begin_with_the_user_s_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    paths = 'home = "~/worker"\ntoken_file = "~/token"\nexpert = "~/expert"\n'
    (home / "other.toml").write_text(f'coordinator = "https://example.org"\ndomain = "law"\ndata = ["a"]\n{paths}')
    given = read_settings({}, home / "other.toml")
    assert (given.home, given.expert, given.token) == (home / "worker", home / "expert", "secret")


def test_a_token_in_place_of_its_file_is_not_shown(home: Path) -> None:
    write(home, f'token_file = "moerge_{"Kx9" * 15}"\n')
    with pytest.raises(MoergeError, match="token_file is a token") as caught:
        read(home)
    assert "Kx9" not in str(caught.value)


DEFAULT, OWN = TextBefore(tokens=100), TextBefore(tokens=64)


@pytest.mark.parametrize(
    ("more", "default", "expected"),
    [
        ("", None, None),
        ("", DEFAULT, DEFAULT),
        ("[statistics]\ncontext = 100", DEFAULT, TextBefore(tokens=50, piece=50)),
        ("[statistics]\nbefore = false", None, None),
        ("[statistics]\nbefore = false", DEFAULT, None),
        ("[statistics.before]\ntokens = 64", None, OWN),
        ("[statistics.before]\ntokens = 64", DEFAULT, OWN),
    ],
)
def test_text_before_is_the_default_s_unless_the_file_sets_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, more: str, default: TextBefore | None, expected: TextBefore | None
) -> None:
    monkeypatch.setattr(settings, "FEDERATED", FEDERATED.model_copy(update={"before": default}))
    write(home, more)
    assert read(home).statistics.before == expected


def test_a_file_elsewhere_may_name_the_home(home: Path) -> None:
    config = home / "elsewhere.toml"
    config.write_text((home / FILE).read_text() + f'home = "{home}"\n')
    assert read_settings({}, config).home == home


@pytest.mark.parametrize(
    ("more", "given", "where", "told"),
    [
        ("tuning_shar = 0.1", {}, FILE, "did you mean tuning_share?"),
        ("[policy]\nmin_document = 9", {}, FILE, "did you mean min_documents?"),
        ("[policy]\nmode = 'maybe'", {}, FILE, "policy.mode"),
        ("token = 'x'", {}, FILE, "token_file"),
        ("home = 'x'", {}, FILE, "remove the key"),
        ("token_file = 'nowhere'", {}, FILE, "no token"),
        ("", {"context": 0}, "`context`", "expected at least 1"),
        ("held_out_share = 0.6", {"tuning_share": 0.4}, FILE, "must add up to less than 1"),
        ("[policy]\ndomains = ['art']", {}, FILE, "the policy's domains are art; not law"),
        ("seed = 'nowhere'", {}, "nowhere", "no such folder"),
        ("[policy]\nevaluation_sums = true", {}, FILE, "set held_out_share"),
        ("held_out_share = 0.1\n[policy]\nevaluation_sums = true", {"context": 1}, FILE, "a context of 2 or more"),
        ("[statistics]\nbefore = 3", {}, FILE, "statistics.before"),
        ("= 3", {}, FILE, "not TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    home: Path, more: str, given: dict[str, Any], where: str, told: str
) -> None:
    write(home, more)
    with pytest.raises(MoergeError) as caught:
        read(home, **given)
    assert caught.value.where.endswith(where)
    assert told in str(caught.value)


def test_what_is_missing_is_told_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="data is missing") as caught:
        read(tmp_path, token="x", coordinator="https://example.org", domain="law", expert=str(tmp_path))
    assert caught.value.where == f"{tmp_path / FILE}, or `data`"


@pytest.mark.parametrize(("asked", "most", "used"), [(None, 50, 50), (80, 50, 50), (20, 50, 20), (20, None, 20)])
def test_no_option_widens_the_policy_s_tokens_per_document(
    home: Path, asked: int | None, most: int | None, used: int
) -> None:
    write(home, f"[policy]\ntokens_per_document = {most}\n" if most else "")
    given = {} if asked is None else {"tokens_per_document": asked}
    assert read(home, **given).statistics.tokens_per_document == used


def test_the_expert_decides_about_a_fit_unless_it_is_set(home: Path) -> None:
    (home / "seed").mkdir()
    settings = read(home, seed=str(home / "seed"))
    assert (settings.seed, settings.fit) == (home / "seed", None)
    assert read(home, fit=False).fit is False
