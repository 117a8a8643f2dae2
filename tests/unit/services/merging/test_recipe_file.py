"""A recipe file says what options say, its errors name lines, and an output's own file repeats the merge."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from typer.main import get_group
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.merging import commands
from moerge.merging.recipe import KEYS, OF_MERGE, Recipe
from moerge.merging.recipe_file import FILE, read_recipe, recipe_text
from support.merging import SMALL, files
from support.models import expert, texts
from support.processes import moerge, run_command

RECIPE = """\
expert:
  law: ./law
  art: art
text:
  law: law.jsonl
  art: [art.jsonl]
lambda: 2e-3
scored_tokens: 500
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts and texts of law, art and code, and a recipe file of the first two."""
    root = tmp_path_factory.mktemp("recipes")
    for seed, domain in enumerate(("law", "art", "code"), 1):
        expert(root / domain, seed, **SMALL)
        texts(root / f"{domain}.jsonl", seed, documents=90)
    (root / FILE).write_text(RECIPE)
    moerge("merge", f"--config={root / FILE}", f"--out={root / 'merged'}")
    return root


def error_of(*words: object) -> str:
    """The error of `moerge merge` with these options."""
    return str(CliRunner().invoke(app, ["merge", *map(str, words)]).exception)


def written(folder: Path, text: str) -> Path:
    path = folder / FILE
    path.write_text(text)
    return path


def content(path: Path) -> dict[str, object]:
    return dict(yaml.safe_load(path.read_text()))


# --- the file and the options
def test_every_option_of_a_merge_is_a_key(tmp_path: Path) -> None:
    options = {option.name for option in get_group(commands.app).params}
    assert options - set(OF_MERGE) == {"out", "config", "dry_run", "as_json"}
    error = error_of("--config", written(tmp_path, "zzz: 1"), "--out", tmp_path / "out")
    assert all(key in error for key in KEYS.values())


def test_a_key_of_the_service_is_none_of_a_merge(tmp_path: Path) -> None:
    error = error_of("--config", written(tmp_path, "top_k: 1\ntied: true"), "--out", tmp_path / "out")
    assert error.startswith(f"{tmp_path / FILE}, line 2: tied: tied is not a key of moerge merge")


def test_a_file_gives_the_merge_of_the_same_options(folder: Path, tmp_path: Path) -> None:
    given = [f"--expert={name}={folder / name}" for name in ("law", "art")]
    given += [f"--text={name}={folder / name}.jsonl" for name in ("law", "art")]
    config = written(tmp_path, "lambda: 0.002\nscored_tokens: 500\n")
    moerge("merge", *given, f"--config={config}", f"--out={tmp_path / 'out'}")
    made, named = files(tmp_path / "out"), files(folder / "merged")
    assert {name for name in named if made[name] != named[name]} <= {FILE, "README.md"}  # paths from other folders
    assert made.keys() == named.keys()


def test_the_file_of_an_output_repeats_its_merge_to_the_byte(folder: Path) -> None:
    moerge("merge", f"--config={folder / 'merged' / FILE}", f"--out={folder / 'again'}")
    assert files(folder / "again") == files(folder / "merged")


def test_the_file_of_an_output_has_all_that_determines_the_version_and_the_card_its_digest(folder: Path) -> None:
    made = content(folder / "merged" / FILE)
    assert made["expert"] == {"law": "../law", "art": "../art"}
    assert made["text"] == {"law": "../law.jsonl", "art": "../art.jsonl"}
    for name, value in {"body": "regmean", "head": "regmean", "lambda": 0.002, "fit": False, "context": 512}.items():
        assert made[name] == value
    assert not made.keys() & {"slots", "host_memory", "keep_statistics", "out", "json"}
    digest = sha256((folder / "merged" / FILE).read_bytes()).hexdigest()
    assert f"The options of the merge are in `{FILE}`, SHA-256 `{digest}`." in (folder / "merged/README.md").read_text()


def test_a_dry_run_prints_the_file_of_the_merge(folder: Path, tmp_path: Path) -> None:
    given = [f"--config={folder / FILE}", f"--out={folder / 'merged-2'}", "--dry-run"]
    text = (folder / "merged" / FILE).read_text()
    done = run_command("merge", *given)
    assert text in done.stdout, done.stderr
    assert "Nothing was written." in done.stdout
    assert json.loads(moerge("merge", *given, "--json"))["recipe"] == text


def test_options_override_the_entry_of_their_name_or_the_key(folder: Path) -> None:
    given = ["--text", f"law={folder}/code.jsonl", "--prompt", "art=Once", "--context=300", "--top-k=2"]
    given += [f"--expert=code={folder / 'code'}", f"--text=code={folder / 'code.jsonl'}"]
    done = moerge("merge", "--config", folder / FILE, "--out", folder / "other", "--dry-run", "--json", *given)
    made = yaml.safe_load(json.loads(done)["recipe"])
    assert made["expert"] == {"law": "../law", "art": "../art", "code": "../code"}
    assert list(made["expert"]) == ["law", "art", "code"]
    assert made["text"] == {"law": "../code.jsonl", "code": "../code.jsonl"}
    assert made["prompt"] == {"art": "Once"}
    assert (made["lambda"], made["context"], made["top_k"]) == (2e-3, 300, 2)


def test_an_overridden_expert_keeps_its_slot(folder: Path) -> None:
    given = ["--config", folder / FILE, "--out", folder / "other", f"--expert=law={folder / 'code'}"]
    made = yaml.safe_load(json.loads(moerge("merge", *given, "--dry-run", "--json"))["recipe"])
    assert list(made["expert"].items()) == [("law", "../code"), ("art", "../art")]


def test_the_file_of_an_addition_repeats_it(folder: Path, tmp_path: Path) -> None:
    moerge("merge", f"--config={folder / FILE}", f"--out={tmp_path / 'first'}", "--keep-statistics")
    text = f"add:\n  code: {folder / 'code'}\ntext:\n  code: {folder / 'code.jsonl'}\nfrom: first\nscored_tokens: 0\n"
    moerge("merge", f"--config={written(tmp_path, text)}", f"--out={tmp_path / 'added'}")
    made = content(tmp_path / "added" / FILE)
    assert (made["from"], made["fit"], made["body"]) == ("../first", True, "regmean")
    assert "expert" not in made
    moerge("merge", f"--config={tmp_path / 'added' / FILE}", f"--out={tmp_path / 'again'}")
    assert files(tmp_path / "again") == files(tmp_path / "added")


def test_every_value_that_is_written_is_read(tmp_path: Path) -> None:
    """Also texts that look like numbers, lists and several lines."""
    recipe = Recipe(
        prompt={"law": ["1e-3", "no", "two\nlines: [x]"], "art": ["a=b"]},
        weights={"law": 1e-07, "art": 2.0},
        domain_weights={"law": 2.0},
        chat="null",
        before=True,
        ridge_lambda=1e-12,
    )
    assert read_recipe(written(tmp_path, recipe_text(recipe, tmp_path))).recipe({}) == recipe


def test_a_file_with_chats_names_the_date_of_their_template(tmp_path: Path) -> None:
    line = "# A chat template that asks for the date gets 2024-07-26.\n"
    assert line in recipe_text(Recipe(chat="messages"), tmp_path)
    assert line not in recipe_text(Recipe(), tmp_path)


def test_a_file_may_be_of_another_editor(tmp_path: Path) -> None:
    path, text = tmp_path / FILE, "expert: {law: law}\r\nchat: 2024-13-45\r\n"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_bytes(text.encode(encoding))
        assert read_recipe(path).values == {"expert": {"law": "law"}, "chat": "2024-13-45"}
    path.write_bytes(text.encode("utf-16"))
    assert error_of("--config", path, "--out", tmp_path / "out").startswith(f"{path}: UTF-16, not UTF-8")


# --- errors
@pytest.mark.parametrize(
    ("text", "line", "what", "todo"),
    [
        ("expert:\n  law: law\ntop-k: 1", 3, "unknown key 'top-k'", "did you mean top_k?"),
        ("expert: {law: law}\nout: merged", 2, "out is not a key", "remove it, and give it as an option"),
        ("\ntop_k: two", 2, "top_k: expected a valid integer", "correct the value"),
        ("top_k: true", 1, "top_k: expected a valid integer", "correct the value"),
        ("lambda: 0", 1, "lambda: expected more than 0", "correct the value"),
        ("slots: 0", 1, "slots: expected at least 1", "correct the value"),
        ("domain_weights: {law: -1}", 1, "domain_weights.law: expected more than 0", "correct the value"),
        ("top_k: 0", 1, "top_k: expected at least 1", "correct the value"),
        ("before: 1", 1, "before: expected a valid boolean", "correct the value"),
        ("recipe: best", 1, "recipe: expected 'recommended' or 'dume'", "correct the value"),
        ("body: mean", 1, "body: expected 'seed', ", "correct the value"),
        ("expert: law", 1, "expert: expected names with values", "correct the value"),
        ("text:\n  law:\n    - a.txt\n    - 5", 4, "text.law.1: 5 without quotes is a number", 'quote it: "5"'),
        ("expert:\n  de: a\n  no: b", 3, "expert: the key no without quotes is a boolean", 'quote it: "no"'),
        ("expert:\n  1e3: a", 2, "expert: the key 1e3 without quotes is a number", 'quote it: "1e3"'),
        ("expert: {null: a}", 1, "expert: the key null without quotes is no value", 'quote it: "null"'),
        ("on: a", 1, "the key on without quotes is a boolean", 'quote it: "on"'),
        ("text:\n  law: off", 2, "text.law: off without quotes is a boolean", 'quote it: "off"'),
        ("chat: 010", 1, "chat: 010 without quotes is a number", 'quote it: "010"'),
        ("license: {law: 0x1F}", 1, "license.law: 0x1F without quotes is a number", 'quote it: "0x1F"'),
        ("text:\n  law:", 2, "text.law: no value", "write it behind the colon"),
        ("text:\n  law: []", 2, "text.law: expected at least 1, found 0", "correct the value"),
        ("weight:\n  law: much", 2, "weight.law: expected a valid number", "correct the value"),
        ("top_k: 1\nbody: seed\ntop_k: 2", 3, "top_k is also in line 1", "keep one of them"),
        ("text:\n  law: a\n  law: b", 3, "text.law is also in line 2", "keep one of them"),
        ("expert:\n law: a\n  art: b", 3, "not YAML: mapping values are not allowed here", "correct the file"),
        ("expert: !!python/name:os.system", 1, "not YAML: expected no anchors, aliases and tags", "correct the file"),
        ("- expert", 1, "expected keys with values", "write a key as in top_k: 1"),
        ("expert:\n  law: .../law", 2, "the file doesn't say where .../law is", "give this key as an option"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, line: int, what: str, todo: str) -> None:
    error = error_of("--config", written(tmp_path, text), "--out", tmp_path / "out")
    where = f"{tmp_path / FILE}, line {line}: "
    assert error.startswith(where), error
    assert what in error
    assert todo in error
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("law: law.jsonl", "law: lax.jsonl", "line 5: text law {folder}/lax.jsonl: no file matches"),
        ("lambda: 2e-3", "lambda: -1", "line 7: lambda: expected more than 0"),
        ("  law: ./law", "  Law: ./law", "line 1: expert: 'Law' is not a valid domain name"),
        ("  law: law.jsonl\n", "", "line 4: text: no text of law"),
        ("lambda: 2e-3", "license: {code: mit}", "line 7: license: no expert of code"),
        ("lambda: 2e-3", "weight: {law: 2}", "line 7: weight: "),
        ("lambda: 2e-3", "host_memory: much", "line 7: host_memory: expected a size, found 'much'"),
        ("  art: art", "  art: missing/art", "line 3: expert art: missing/art: no such folder"),
        ("  art: art", "  art: ./missing", "line 3: expert art: {folder}/missing: no such folder"),
        ("  art: art", "  art: .", "line 3: expert art: {folder}/config.json: "),
        ("lambda: 2e-3", "base: ./missing", "line 7: base: {folder}/missing: no such folder"),
    ],
)
def test_an_error_about_a_value_names_its_line(folder: Path, tmp_path: Path, old: str, new: str, error: str) -> None:
    for name in ("law", "art", "law.jsonl", "art.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    path = written(tmp_path, RECIPE.replace(old, new, 1))
    assert error_of("--config", path, "--out", tmp_path / "out").startswith(f"{path}, {error.format(folder=tmp_path)}")


def test_an_error_about_an_option_doesnt_name_the_file(folder: Path, tmp_path: Path) -> None:
    given = ["--config", folder / FILE, "--out", tmp_path / "out"]
    assert error_of(*given, "--top-k=3").startswith("--top-k: 3 experts per token, of 2")
    assert error_of(*given, "--text=law=lax.jsonl").startswith("--text law lax.jsonl: no file matches")
    assert error_of(*given, f"--text=code={folder / 'code.jsonl'}").startswith("--text: no expert of code")


def test_an_option_gives_a_path_that_the_file_doesnt_say(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "law", tmp_path / "law")
    path = written(tmp_path, "expert:\n  law: ./law\n  art: .../art\ntext:\n  law: .../law.jsonl\n")
    given = ["--config", path, "--out", tmp_path / "out"]
    assert error_of(*given).startswith(f"{path}, line 3: expert art: the file doesn't say where .../art is")
    given += [f"--expert=art={folder / 'art'}", f"--text=law={folder / 'law.jsonl'}"]
    assert error_of(*given).startswith("--text: no text of art")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    error = error_of("--config", tmp_path / FILE, "--out", tmp_path / "out")
    assert error.startswith(f"{tmp_path / FILE}: can't be read: No such file")


# --- paths
def test_a_folder_of_the_working_directory_is_no_folder_of_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    shutil.copytree(folder / "law", tmp_path / "models" / "law")
    (tmp_path / "recipes").mkdir()
    path = written(tmp_path / "recipes", "expert:\n  law: models/law\n")
    monkeypatch.chdir(tmp_path)
    assert f"{path}, line 2: expert law: a folder of the working directory" in error_of("--config", path, "--out", "x")


def shown(out: Path, **values: object) -> dict[str, object]:
    """The values in a file of options' values."""
    return dict(yaml.safe_load(recipe_text(Recipe.model_validate(values), out)))


def test_a_file_names_no_folder_that_the_output_does_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home is alice's; paths through it, through the root and with credentials are cut."""
    home, out = tmp_path / "alice", tmp_path / "srv" / "out"
    monkeypatch.setenv("HOME", str(home))
    for path in (home / "law", home / "base", tmp_path / "srv" / "law"):
        path.mkdir(parents=True)
    text = {
        "law": f"{home}/law/*.jsonl",
        "art": "/elsewhere/art.txt",
        "code": "s3://bucket/code",
        "tax": "s3://me:key@bucket/tax",
        "zip": f"file://{home}/zip.txt",
        "web": "https://example.org/web.jsonl?token=a/secret",
        "key": "s3://me:secret@bucket",
    }
    made = shown(
        out,
        expert={"law": f"{home}/law", "art": f"{tmp_path}/srv/law", "code": f"{home}/base+{home}/law"},
        text=text,
        prompt={"law": f"@{home}/secret/law.txt"},
        from_=f"{home}/merged",
    )
    assert made["expert"] == {"law": ".../law", "art": "../law", "code": ".../base+.../law"}
    assert made["text"] == {
        "law": ".../*.jsonl",
        "art": ".../art.txt",
        "code": "s3://bucket/code",
        "tax": ".../tax",
        "zip": ".../zip.txt",
        "web": ".../web.jsonl",
        "key": ".../bucket",
    }
    assert (made["prompt"], made["from"]) == ({"law": "@.../law.txt"}, ".../merged")
    assert "alice" not in str(made)
    assert "secret" not in str(made)
    at_home = shown(home / "models" / "out", text={"law": f"{home}/law/*.jsonl"})
    assert at_home["text"] == {"law": "../../law/*.jsonl"}


def test_a_hub_id_is_written_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cached, commit = tmp_path / "hub" / "models--lab--law", "c" * 40
    (cached / "snapshots" / commit).mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    named = shown(tmp_path, expert={"law": "lab/law", "art": f"lab/law@{commit}", "tax": "lab/unknown"})
    assert named["expert"] == {"law": f"lab/law@{commit}", "art": f"lab/law@{commit}", "tax": "lab/unknown"}
