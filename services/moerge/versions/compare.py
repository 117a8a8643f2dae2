"""What differs between two versions."""

from moerge_proto.versions import Comparison, FileChange, Version


def compare(before: Version, after: Version) -> Comparison:
    """The way from one version to another, as lineage and as files."""
    old, new = before.lineage, after.lineage
    options = new.options.model_dump(mode="json") | {"tied": new.tied}
    earlier = old.options.model_dump(mode="json") | {"tied": old.tied}
    files = _files(before, after)
    return Comparison(
        before=before.number,
        after=after.number,
        same_trunk=old.trunk == new.trunk,
        experts_added=[each for each in new.experts if each not in old.experts],
        experts_removed=[each for each in old.experts if each not in new.experts],
        contributions_added=[each for each in new.contributions if each not in old.contributions],
        contributions_removed=[each for each in old.contributions if each not in new.contributions],
        options={name: (earlier[name], value) for name, value in options.items() if earlier[name] != value},
        files=files,
        fetch=sum({file.sha256: file.size for file in after.files if file.sha256 not in _digests(before)}.values()),
    )


def lost_domains(before: Version, after: Version) -> list[str]:
    """The domains that consumers lose on the way from one version to another; withdrawn ones don't count."""
    there = zip(before.lineage.domains, before.lineage.experts, strict=True)
    kept = {*after.lineage.domains}
    return [domain for domain, expert in there if domain not in kept and expert not in before.contains_withdrawn]


def _digests(version: Version) -> set[str]:
    return {file.sha256 for file in version.files}


def _files(before: Version, after: Version) -> list[FileChange]:
    old = {file.name: file for file in before.files}
    changes = []
    for file in after.files:
        known = old.pop(file.name, None)
        if known is None:
            changes.append(FileChange(name=file.name, change="new", size=file.size))
        else:
            change = "same" if known.sha256 == file.sha256 else "changed"
            changes.append(FileChange.model_validate({"name": file.name, "change": change, "size": file.size}))
    return changes + [FileChange(name=file.name, change="gone", size=0) for file in old.values()]
