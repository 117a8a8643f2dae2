"""Settings files as editors and shells write them."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.settings import read_text, read_toml

TEXT = 'law = "Straße"\r\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_skipped(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_bytes(TEXT.encode(encoding))
    assert read_toml(tmp_path / "file.toml") == {"law": "Straße"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_of_an_older_powershell_is_named(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_bytes(TEXT.encode(encoding))
    with pytest.raises(MoergeError, match="UTF-16, not UTF-8") as caught:
        read_toml(tmp_path / "file.toml")
    assert (caught.value.where, "save it as UTF-8" in caught.value.todo) == (str(tmp_path / "file.toml"), True)


def test_another_encoding_is_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"law = 1\n" + TEXT.encode("latin-1"))
    with pytest.raises(MoergeError, match="not UTF-8: line 2 has the byte 0xdf"):
        read_text(tmp_path / "file")


@pytest.mark.parametrize(("text", "fault"), [("law = no", "Invalid value"), ("law = " + "[" * 9999, "recursion")])
def test_a_text_that_is_no_toml_is_named(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(text)
    with pytest.raises(MoergeError, match=f"not TOML: .*{fault}") as caught:
        read_toml(tmp_path / "file.toml")
    assert "quotes" in caught.value.todo


def test_a_folder_or_a_missing_file_is_no_settings_file(tmp_path: Path) -> None:
    for path, fault in ((tmp_path, "Is a directory"), (tmp_path / "file", "No such file")):
        with pytest.raises(MoergeError, match=f"can't be read: {fault}"):
            read_text(path)
