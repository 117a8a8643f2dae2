"""An engine: another Python's process that answers for many models in turn."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from engines.compare import Answers
from engines.reference import NEW_TOKENS, prompts
from moerge.errors import MoergeError

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "engines"
"""Environments, experts, versions and answers."""
SCRIPTS = Path(__file__).parent / "scripts"


def page_of(engine: str) -> str:
    """The path of an engine's page, by its name."""
    return f"docs/consumers/{engine.lower().replace('.', '-')}.md"


class MissingEngineError(Exception):
    """The engine's environment isn't installed; the message says how to get it."""


@dataclass(frozen=True)
class Model:
    """A folder for an engine to run, with the number format and the engine's own options."""

    folder: Path
    dtype: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Engine:
    """An engine that reads folders of a version.

    Attributes:
        name: in tables and in `EngineLimit.engine`.
        package: its distribution, for the version in the table.
        environment: name of its environment in `HOME`, which `make` installs.
        script: of `SCRIPTS`, run with the file of a job, which names a file for each model's answers.
        variables: of its process.
        prepared: the path that the script gets for a model, by default the folder; makes it where that is another one.
        served: that path in the commands of its page.
        speed: the script that measures costs, if there is one.
        benchmarks: whether docs/benchmarks.md has a section of this name, whose commands its environment runs.
        remedies: text of an `EngineLimit.remedy` -> the options by which the script follows it.
    """

    name: str
    package: str
    environment: str
    script: str
    variables: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prepared: Callable[[Model], Path] = lambda model: model.folder
    served: str = "merged/"
    speed: str | None = None
    benchmarks: bool = False

    @property
    def python(self) -> Path:
        return HOME / self.environment / "bin" / "python"

    def version(self) -> str:
        """The installed version.

        Raises:
            MissingEngineError: it is not installed.
        """
        code = f"import importlib.metadata as m; print(m.version('{self.package}'))"
        place = self.python.parents[1]
        if not self.python.exists():
            raise MissingEngineError(f"{self.name} is not installed in {place}; run: make test-engines")
        run = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        if run.returncode:
            raise MissingEngineError(f"{self.package} is not installed in {place}; run: make test-engines")
        return run.stdout.strip()

    def answers(self, models: Sequence[Model], said: Callable[[str], None]) -> list[Answers]:
        """The engine's answers, in the order of the models; those of an interrupted run are kept.

        A model that ends the process has an error.
        """
        work = HOME / "answers" / self.environment
        work.mkdir(parents=True, exist_ok=True)
        while left := [model for model in models if not (work / self._file(model)).exists()]:
            said(f"{self.name}: {len(left)} of {len(models)} models left")
            wanted = [row for item in left if (row := self._asked(item, work)) is not None]
            if not wanted:
                break
            content = {"prompts": prompts(), "new_tokens": NEW_TOKENS, "models": wanted}
            (work / "job.json").write_text(json.dumps(content), encoding="utf-8")
            code = self.run(self.script, work / "job.json", work / "log.txt")
            ended = next((item for item in left if not (work / self._file(item)).exists()), None)
            if ended is not None:
                error = f"the process ended with {code}; its output is in {work / 'log.txt'}"
                (work / self._file(ended)).write_text(json.dumps({"error": error}), encoding="utf-8")
        return [Answers.of(json.loads((work / self._file(model)).read_text(encoding="utf-8"))) for model in models]

    def _asked(self, model: Model, work: Path) -> dict[str, Any] | None:
        """A model's part of the job; None if it can't be prepared, which is its answer."""
        path = work / self._file(model)
        try:
            folder = self.prepared(model)
        except MoergeError as error:
            path.write_text(json.dumps({"error": str(error)}), encoding="utf-8")
            return None
        options = dict(model.options)
        return {"folder": str(folder), "dtype": model.dtype, "options": options, "answers": str(path)}

    def _file(self, model: Model) -> str:
        return sha256(repr((model, prompts(), NEW_TOKENS)).encode()).hexdigest()[:16] + ".json"

    def run(self, script: str, job: Path, log: Path) -> int:
        """Runs a script with a job in the engine's Python, and returns its exit status; its output is in `log`."""
        with log.open("w", encoding="utf-8") as out:
            return subprocess.run(  # noqa: S603  # our own command
                [self.python, SCRIPTS / script, job],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environ,
                cwd=log.parent,
                check=False,
            ).returncode

    @property
    def environ(self) -> dict[str, str]:
        """The variables of its processes."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = f"{self.python.parent}{os.pathsep}{inherited['PATH']}"
        return {**inherited, "PATH": path, "HF_HUB_OFFLINE": "1", **self.variables}
