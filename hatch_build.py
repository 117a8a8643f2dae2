"""The description and the links of the package.

An index shows README.md without the files beside it. `make dist REPOSITORY=https://...` makes its links absolute, at
the commit of the build.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)(\[[^]]*\])\((?!https?:|#)([^)]+)\)")


class Metadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("MOERGE_REPOSITORY", "").rstrip("/")
        commit = root / "services" / "moerge" / "commit"
        if repository and commit.is_file():
            at = commit.read_text(encoding="utf-8").strip()
            tree = f"{repository}/blob/{at}"
            text = _RELATIVE.sub(
                lambda link: f"{link[1]}{link[2]}({f'{repository}/raw/{at}' if link[1] else tree}/{link[3]})", text
            )
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{tree}/docs/README.md",
                "Changelog": f"{tree}/CHANGELOG.md",
                "Security": f"{tree}/SECURITY.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
