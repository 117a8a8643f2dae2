"""The images of deploy/, built once for all tests."""

import os
from collections.abc import Iterator

import pytest

from support.containers import BASE, Containers, containers, require_tools
from support.transcripts import ROOT, Header

CPU = "--build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu --build-arg TORCH_OPTIONS=--no-deps"


@pytest.fixture(scope="session")
def images() -> Iterator[Containers]:
    """Both images, built for a CPU. BUILD has further options of `buildah build`, SUITE the base's suite of Debian."""
    require_tools()
    base = f"--build-arg PYTHON_IMAGE={BASE}"
    with containers(ROOT / "build" / "images", f"{base} {CPU} {os.environ.get('BUILD', '')}") as made:
        if not made.has(BASE):
            made.make_base(os.environ.get("SUITE") or "bookworm")
        for name in ("coordinator", "worker"):
            with Header(f"deploy/{name}.Dockerfile", indent=3) as part:
                made.run("sh", "-c", f"cd {ROOT} && {part.next('docker build')}")
        yield made


@pytest.fixture(scope="module")
def made(images: Containers) -> Iterator[Containers]:
    """Both images; a module's containers end with it."""
    yield images
    images.clear()
