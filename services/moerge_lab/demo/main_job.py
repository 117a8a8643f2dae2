"""The main job on real text: four owners, one coordinator; three join first, the fourth later."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.progress import progress
from moerge_lab.demo import result
from moerge_lab.demo.processes import Processes, address_in, output_of
from moerge_lab.demo.stages import Stages
from moerge_lab.experts.train import DEMO
from moerge_lab.table.texts import Sources
from moerge_proto.experts import ExpertState
from moerge_proto.signatures import JoinRequest
from moerge_proto.versions import CHAMPION, NewVersion

CONTEXT = DEMO.context
_SMALL_POLICY = "Their policies allow contributions of 2 documents, as some domains have few; the default is 1,000."
_POLICY = """\
held_out_share = 0.1

[policy]  # for public texts; some domains have hardly a hundred
min_documents = 2
evaluation_sums = true
redistribute = true
progress = true
"""


@dataclass(frozen=True)
class Domain:
    """A dense expert and its texts: split -> JSON Lines file."""

    name: str
    expert: Path
    texts: dict[str, Path]


Workers = dict[str, subprocess.Popen[str]]
"""Domain -> its owner's running worker."""


class Demo:
    """The demo in a home folder. All content is named by digest, so a second run resumes an interrupted one."""

    def __init__(self, home: Path, domains: Sequence[Domain], seed: Path, stages: Stages) -> None:
        self._home, self._domains, self._seed, self._stages = home, domains, seed, stages
        self._coordinator, self._versions = home / "coordinator", home / "coordinator" / "versions"
        self._url = self._token = ""

    def run(self, *, serve: bool = False) -> None:
        """Publishes a version of all domains except the last, then one of all; `serve` keeps the dashboard open."""
        stages = self._stages
        stages.begin(2)
        self._token = self._operator_token()
        with Processes() as processes, ExitStack() as stack:
            coordinator = self._serve(processes)
            client = stack.enter_context(Client(self._url, self._token))
            early, late = self._domains[:-1], self._domains[-1]
            stages.tell(f"Owners: {', '.join(domain.name for domain in early)}. {_SMALL_POLICY}")
            workers = {domain.name: self._start_worker(processes, client, domain) for domain in early}
            experts = self._ready_experts(client, workers)
            stages.begin(3)
            body = client.body("current").digest
            stages.tell(f"Meanwhile {late.name} joins, under the same body.")
            newcomer = self._start_worker(processes, client, late)
            first = self._publish(processes, client, body, experts, workers)
            stages.begin(4)
            stages.tell(f"Each owner evaluates version {first}.")
            workers[late.name] = newcomer
            self._promote_evaluated(processes, client, first, workers)
            experts = self._ready_experts(client, workers)
            last = self._publish(processes, client, body, experts, workers)
            stages.tell(
                f"Each owner evaluates version {last}. Only {late.name} had to contribute for it, and the head is new."
            )
            self._promote_evaluated(processes, client, last, workers)
            processes.stop(*workers.values())
            stages.begin(5)
            self._result(client, first, last)
            stages.finish()
            self._say_what_next(first, last, serve=serve)
            if serve:
                stages.tell(f"The dashboard is open at {self._url} until you press Ctrl-C.")
                processes.finish("coordinator", coordinator)

    def _operator_token(self) -> str:
        """Makes the home with the seed's body, or adds the body to an earlier run's; returns the operator's token."""
        path = self._home / "operator-token"
        if path.is_file():
            self._output_of("coordinator", "seed", self._coordinator, self._seed)
            return path.read_text()
        shutil.rmtree(self._coordinator, ignore_errors=True)  # from a run interrupted before it stored the token
        token = self._output_of("coordinator", "init", self._coordinator, "--seed", self._seed)
        with atomic_file(path, private=True) as out:
            out.write(token.encode())
        return token

    def _output_of(self, *command: object) -> str:
        self._stages.command(*command)
        return output_of(*command)

    def _serve(self, processes: Processes) -> subprocess.Popen[str]:
        log = self._home / "coordinator.log"
        start = log.stat().st_size if log.exists() else 0
        self._stages.command("coordinator", "serve", self._coordinator, "--port", 0)
        process = processes.start(["coordinator", "serve", self._coordinator, "--port", 0], {}, log=log)
        while process.poll() is None:
            if url := address_in(log, start):
                self._url = url
                self._stages.tell(f"The coordinator and its dashboard are at {url}; messages are in {log}")
                return process
            time.sleep(0.1)
        raise MoergeError("the coordinator did not start", where=str(log), todo="see the log's last lines")

    def _start_worker(self, processes: Processes, client: Client, domain: Domain) -> subprocess.Popen[str]:
        home = self._home / f"worker-{domain.name}"
        token = self._approved(client, domain.name, home)
        with atomic_file(home / "worker.toml") as out:
            out.write(_POLICY.encode())
        arguments: list[object] = ["worker", "run", "--domain", domain.name, "--expert", domain.expert]
        arguments += ["--data", domain.texts["statistics"], "--home", home]
        arguments += ["--license", "Apache-2.0", "--context", CONTEXT, "--seed", self._seed]
        environment = {"MOERGE_COORDINATOR": self._url, "MOERGE_TOKEN": token}
        self._stages.command(*arguments)
        return processes.start(arguments, environment, label=domain.name)

    def _approved(self, client: Client, domain: str, home: Path) -> str:
        command = "worker", "init", "--owner", f"{domain}-owner", "--domain", domain, "--home", home
        line = self._output_of(*command)
        self._stages.command("owner", "approve", f"{line[:30]}...")
        return client.approve(JoinRequest.of_line(line), replace=True).token.secret

    def _ready_experts(self, client: Client, workers: Workers) -> list[str]:
        """The digests of the workers' experts, after the coordinator has accepted all."""
        while True:
            known = {row.domain: row.digest for row in client.experts() if row.state is ExpertState.READY}
            ready = [known[name] for name in workers if name in known]
            if len(ready) == len(workers):
                return ready
            self._pause(workers)

    def _wait_for_domains(self, workers: Workers, contributed: Callable[[], set[str]]) -> None:
        while not workers.keys() <= contributed():
            self._pause(workers)

    @staticmethod
    def _pause(workers: Workers) -> None:
        for name, process in workers.items():
            if process.poll():
                raise MoergeError("its worker failed", where=name, todo="see its messages above")
        time.sleep(0.2)

    def _publish(self, processes: Processes, client: Client, body: str, experts: list[str], workers: Workers) -> int:
        def contributed() -> set[str]:
            heads = {row.domain for row in client.contributions("head") if row.active}
            rows = {row.domain for row in client.contributions() if row.active and row.body == body}
            return rows & heads

        self._wait_for_domains(workers, contributed)
        self._stages.command("version", "solve")
        new = NewVersion(experts=experts)
        number = int(client.wait(client.solve_version(new)))
        self._show(processes, "show", number)
        return number

    def _promote_evaluated(self, processes: Processes, client: Client, number: int, workers: Workers) -> None:
        """Waits only for the newest version's reports, because owners evaluate no earlier one."""
        while client.version_table(number).missing and not any(client.versions(number)):
            self._pause(workers)
        reason = "moerge demo shows it, better or worse"
        self._stages.command("version", "promote", number, "--override", reason)
        client.promote(CHAMPION, number, override=reason)
        self._show(processes, "table", number)

    def _show(self, processes: Processes, what: str, number: int) -> None:
        command = ["version", what, number]
        self._stages.command(*command)
        environment = {"MOERGE_COORDINATOR": self._url, "MOERGE_TOKEN": self._token}
        processes.finish(f"version {what}", processes.start(command, environment))

    def _result(self, client: Client, first: int, last: int) -> None:
        tell, show, folder = self._stages.tell, self._stages.show, self._versions / str(last)
        sources = {
            domain.name: Sources(domain.expert, [str(domain.texts["statistics"])], [str(domain.texts["heldout"])])
            for domain in self._domains
        }
        tell(f"Stock transformers loads version {last}: {folder}")
        table = result.measured(folder, sources, CONTEXT, self._home / f"table-{last}.json", progress())
        held = {row.domain: row.owner for row in client.experts()}
        tell("")
        show(result.owners(held, [client.version_table(number) for number in (first, last)]))
        show(result.five_rows(table))
        tell(result.meaning(table))
        newcomer = self._domains[-1]
        tell(f"\nVersion {last} continues held-out text of {newcomer.name}; each token has the colour of its expert:\n")
        result.continue_text(folder, newcomer.texts["heldout"])

    def _say_what_next(self, first: int, last: int, *, serve: bool) -> None:
        home, prompt, python = self._coordinator, "The capital of", Path(sys.executable)
        token, folder = self._home / "operator-token", self._versions / str(last)
        moerge, url = python.with_name("moerge"), self._url if serve else "http://127.0.0.1:8080"
        operator = f"MOERGE_COORDINATOR={url} MOERGE_TOKEN=$(cat {token}) {moerge}"
        then = f"{operator} pull champion my-model" if serve else f"{moerge} coordinator serve {home} --port 8080"
        self._stages.tell(
            f"""
Done.
Version {first}: {self._versions / str(first)}
Version {last}: {folder}

Three commands to try next:

  {python} -c "from transformers import pipeline; print(pipeline('text-generation', '{folder}')('{prompt}'))"
  {then}
  {operator} version table {last}

The dashboard is at {url} {"now" if serve else "while the second command runs"}; sign in with the token in {token}.
"""
        )
