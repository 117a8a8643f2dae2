""".github/workflows: valid by their schema, with pinned actions, and with targets, files and arguments that exist."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yaml"))
NAMES = [path.name for path in FILES]


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / name).read_text())  # type: ignore[no-any-return]  # YAML


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in workflow(name)["jobs"].values():
        yield from job.get("steps", ())


def test_they_are_valid_by_their_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned_to_commits_with_their_versions(name: str) -> None:
    for line in (FOLDER / name).read_text().splitlines():
        if (match := re.match(r"^[\s-]*uses: (.+)$", line)) is None:
            continue
        if match[1].startswith("./"):
            assert (ROOT / match[1]).is_file()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", match[1]), line
    pins = re.findall(r"uses: ([\w/-]+)@(\w+)", "".join(path.read_text() for path in FILES))
    assert len(dict(pins)) == len(set(pins))  # one version of each


@pytest.mark.parametrize("name", NAMES)
def test_jobs_have_the_permissions_that_they_need(name: str) -> None:
    made = workflow(name)
    assert made["permissions"] == {"contents": "read"}
    for job in made["jobs"].values():
        needed = job.get("needs", [])
        assert ({needed} if isinstance(needed, str) else set(needed)) <= made["jobs"].keys()
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        used = {step.get("uses", "").partition("@")[0] for step in job.get("steps", ())}
        assert ("attestations" in writes) == ("actions/attest" in used)
        assert ("packages" in writes) == ("docker/build-push-action" in used)
        assert ("pages" in writes) == ("actions/deploy-pages" in used)
        proving = {"actions/attest", "pypa/gh-action-pypi-publish", "actions/deploy-pages"}
        assert ("id-token" in writes) == bool(used & proving)


def targets(name: str) -> set[str]:
    """The targets of the Makefile that a workflow runs."""
    runs = [line for step in steps(name) for line in step.get("run", "").splitlines()]
    result = {target for line in runs for target in re.findall(r"^make ([a-z-]+)", line)}
    for job in workflow(name)["jobs"].values():
        result |= set(job.get("strategy", {}).get("matrix", {}).get("target", ()))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_make_targets_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert targets(name)
    for target in targets(name):
        assert re.search(rf"^([\w -]+ )?{target}( [\w -]+)?:", makefile, re.MULTILINE), target


def test_test_all_runs_all_targets_of_the_workflows() -> None:
    [line] = re.findall(r"^TARGETS .*= (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == set().union(*map(targets, NAMES)) - {"test"} | {"lint", "fast"}


def test_test_all_goes_on_after_a_failure_and_reports_each() -> None:
    made = ["--eval", "good:\n\t@true", "--eval", "bad:\n\t@false"]
    # As a user types it, also where make runs these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(  # noqa: S603
        ["make", *made, "test-all", "TARGETS=good bad good"],  # noqa: S607
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    lines = [line.split() for line in done.stdout.splitlines()[-4:]]
    assert lines[0] == ["minutes", "result"]
    assert [line[1:] for line in lines[1:]] == [["passed", "good"], ["failed", "bad"], ["passed", "good"]]
    assert all(float(line[0]) >= 0 for line in lines[1:])


def test_the_supported_versions_of_python_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", str(project["classifiers"]))
    assert workflow("ci.yaml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named


def test_images_have_the_names_and_arguments_of_deploy() -> None:
    made = {}
    for item in workflow("release.yaml")["jobs"]["images"]["strategy"]["matrix"]["include"]:
        dockerfile = (ROOT / "deploy" / f"{item['file']}.Dockerfile").read_text()
        for name in ("COMMIT", *re.findall(r"^(\w+)=", item["arguments"], re.MULTILINE)):
            assert re.search(rf"^ARG {name}=", dockerfile, re.MULTILINE), name
        made[item["image"] + item["suffix"]] = item["file"]
    assert made == {"moerge-coordinator": "coordinator", "moerge-worker": "worker", "moerge-worker-cpu": "worker"}
    [step] = [item for item in steps("release.yaml") if item.get("uses", "").startswith("docker/build-push-action")]
    assert (step["with"]["sbom"], step["with"]["provenance"]) == (True, "mode=max")


def test_a_release_s_notes_are_its_section_of_the_changelog_and_its_images(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").symlink_to(ROOT / "CHANGELOG.md")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "image-moerge-worker.txt").write_text("ghcr.io/x/moerge-worker@sha256:1\n")
    [script] = [step["run"] for step in steps("release.yaml") if "CHANGELOG.md" in step.get("run", "")]
    environment = {"GITHUB_REF_NAME": "v0.1.0", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=True)  # noqa: S603, S607
    notes = (tmp_path / "notes.md").read_text()
    assert notes.lstrip().startswith("The first version.")
    assert "Unreleased" not in notes
    assert notes.endswith("- `ghcr.io/x/moerge-worker@sha256:1`\n")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["images.txt"]
