"""The list: each mutation is one replaced text. `old` occurs once in its package, in whichever module it is by now."""

from dataclasses import dataclass

PROTO, LIBRARY = "proto/moerge_proto", "services/moerge"
WORKER, COORDINATOR = "workers/moerge_workers", "coordinator/moerge_coordinator"


@dataclass(frozen=True)
class Mutation:
    """Something that matters, broken.

    Attributes:
        name: for the command line.
        subject: the law, or what else no longer holds.
        package: the folder of the code that it changes.
        old: text that it replaces.
        new: the text in its place.
        tests: files of which one must fail, each on its own cheap to run.
    """

    name: str
    subject: str
    package: str
    old: str
    new: str
    tests: tuple[str, ...]


def law(number: int) -> tuple[str]:
    return (f"tests/laws/test_law_{number}.py",)


MUTATIONS = (
    Mutation(
        "switch",
        "law 1: the policy's switches keep things at home",
        WORKER,
        "if not self.settings.policy.allows(item.kind):",
        "if False:",
        law(1),
    ),
    Mutation(
        "other-trunk",
        "law 2: contributions under another trunk are refused",
        COORDINATOR,
        "if trunk is None or manifest.trunk != trunk.digest:",
        "if trunk is None:",
        law(2),
    ),
    Mutation(
        "sums-of-floats",
        "law 3: sums are of integers, in any order the same",
        LIBRARY,
        "each * to_floats(_total(alike, lambda file: file.gram(layer)), exponent)",
        "sum(each * to_floats(file.gram(layer), exponent) for file in alike)",
        law(3),
    ),
    Mutation(
        "shard-twice",
        "law 4: a shard counts once",
        COORDINATOR,
        "query.where(ShardRow.shard.in_(some)).limit(1)",
        "query.where(ShardRow.shard.in_(some)).limit(0)",
        law(4),
    ),
    Mutation(
        "supersede-another-s",
        "law 4: a contribution supersedes its own domain's only",
        COORDINATOR,
        "if row is None or (row.trunk, row.domain) != (manifest.trunk, manifest.domain):",
        "if row is None:",
        law(4),
    ),
    Mutation(
        "withdrawn-stays",
        "law 5: a withdrawn contribution is gone from the next version",
        COORDINATOR,
        "row.active, row.withdrawn = False, row.withdrawn or when",
        "row.withdrawn = row.withdrawn or when",
        law(5),
    ),
    Mutation(
        "projections-exchanged",
        "law 6: with equal experts, logits are the dense model's",
        LIBRARY,
        '("w1.weight", "w3.weight", "w2.weight")',
        '("w3.weight", "w1.weight", "w2.weight")',
        law(6),
    ),
    Mutation(
        "key-without-slot",
        "law 7: a file of another slot is another file",
        LIBRARY,
        '{"layout": _LAYOUT, "name": name, **inputs}',
        '{"layout": _LAYOUT, **inputs}',
        law(7),
    ),
    Mutation(
        "all-tensors-at-once",
        "law 8: files are written tensor by tensor",
        LIBRARY,
        "for plan in ordered:\n            tensor = _computed(plan)",
        "for plan, tensor in [(each, _computed(each)) for each in ordered]:",
        law(8),
    ),
    Mutation(
        "pickled-workflows",
        "law 9: workflows are kept as JSON",
        COORDINATOR,
        "serializer=DBOSPortableJSONSerializer(),  # the default one unpickles",
        "",
        law(9),
    ),
    Mutation(
        "name-before-content",
        "law 10: content is on the disk before its name",
        LIBRARY,
        "os.fsync(file.fileno())\n        temporary.replace(path)",
        "pass\n        temporary.replace(path)",
        law(10),
    ),
    Mutation(
        "half-a-version",
        "law 10: a version's folder appears whole",
        LIBRARY,
        'part = folder.with_name(f".{folder.name}.part")\n    shutil',
        "part = folder\n    shutil",
        law(10),
    ),
    Mutation(
        "unpickled",
        "law 9: a row of the workflow database is not unpickled",
        COORDINATOR,
        'setattr(DefaultSerializer, "deserialize", _refuse)',
        "pass",
        law(9),
    ),
    Mutation(
        "any-role",
        "authorisation: a route's roles",
        COORDINATOR,
        "if identity.role not in roles:",
        "if False:",
        ("tests/contract/test_auth.py",),
    ),
    Mutation(
        "any-domain",
        "authorisation: owners speak for their own domains",
        COORDINATOR,
        "if domain not in identity.domains:",
        "if False:",
        ("tests/unit/coordinator/domain/test_owners.py",),
    ),
    Mutation(
        "download-without-leave",
        "authorisation: owners get others' experts by their leave only",
        COORDINATOR,
        "if each.owner != owner and not each.redistribute]",
        "if False]",
        ("tests/unit/coordinator/domain/test_versions.py",),
    ),
    Mutation(
        "expired-token",
        "authorisation: a token ends when it expires",
        COORDINATOR,
        "if row.expires is not None and row.expires <= when:",
        "if False:",
        ("tests/unit/coordinator/domain/test_tokens.py",),
    ),
    Mutation(
        "forged-signature",
        "signatures: a forged one is none",
        PROTO,
        "except InvalidSignature:\n        return False",
        "except InvalidSignature:\n        return True",
        ("tests/unit/proto/test_signatures.py",),
    ),
    Mutation(
        "any-trace",
        "bounds: a gram has no more than its tokens give",
        LIBRARY,
        "if trace > TRACE_SLACK * largest:",
        "if False:",
        ("tests/unit/services/statistics/test_validate.py",),
    ),
    Mutation(
        "sum-wraps",
        "bounds: a sum that leaves int64 is an error",
        LIBRARY,
        "if (((left ^ total) & (right ^ total)) < 0).any():",
        "if False:",
        ("tests/unit/services/statistics/test_integers.py",),
    ),
    Mutation(
        "lost-column",
        "migrations: no value is lost",
        COORDINATOR,
        'op.execute("ALTER TABLE trunks RENAME COLUMN nonzero_gains TO bounds")',
        'op.drop_column("trunks", "nonzero_gains")\n'
        '    op.add_column("trunks", sa.Column("bounds", sa.JSON(), nullable=False, server_default="[]"))',
        ("tests/contract/test_migrations.py",),
    ),
    Mutation(
        "markup",
        "dashboard: what others wrote is text",
        COORDINATOR,
        "autoescape=True,\n",
        "autoescape=False,\n",
        ("tests/unit/coordinator/dashboard/test_site.py",),
    ),
    Mutation(
        "foreign-form",
        "dashboard: a form of another site does nothing",
        COORDINATOR,
        'if expected is None or not hmac.compare_digest(fields.pop(_FIELD, "").encode(), expected.encode()):',
        "if expected is None:",
        ("tests/unit/coordinator/dashboard/test_session.py",),
    ),
    Mutation(
        "like-an-allowed-source",
        "requests of the coordinator's own: allowed sources only",
        COORDINATOR,
        'url.startswith(prefix.rstrip("/") + "/")',
        'url.startswith(prefix.rstrip("/"))',
        ("tests/unit/coordinator/domain/test_sources.py",),
    ),
    Mutation(
        "any-body",
        "limits: the largest body",
        COORDINATOR,
        "if come > most or (announced",
        "if (announced",
        ("tests/unit/coordinator/rest/test_limits.py",),
    ),
    Mutation(
        "any-quota",
        "limits: an owner's bytes",
        COORDINATOR,
        "if size > left:",
        "if False:",
        ("tests/unit/coordinator/domain/test_uploads.py",),
    ),
    Mutation(
        "told-failure",
        "secrets: a failure's answer has its type and no text",
        COORDINATOR,
        '{type(error).__name__}", "tell its operator',
        '{error!r}", "tell its operator',
        ("tests/unit/coordinator/test_problems.py",),
    ),
    Mutation(
        "file-elsewhere",
        "paths: a download stays in its folder",
        LIBRARY,
        "if Path(file.name).name != file.name or",
        "if",
        ("tests/unit/services/client/test_client.py",),
    ),
    Mutation(
        "other-lambda",
        "defaults: the recommended options are the measured ones",
        PROTO,
        "solve=SolveOptions(ridge_lambda=0.001,",
        "solve=SolveOptions(ridge_lambda=0.01,",
        ("tests/unit/test_recommended.py",),
    ),
    Mutation(
        "any-trunk-is-near",
        "stray: nothing is computed under a trunk far from the expert",
        LIBRARY,
        "if not found.value <= limit:",
        "if False:",
        ("tests/unit/workers/contributing/test_router.py",),
    ),
    Mutation(
        "few-documents",
        "policy: statistics of too few documents stay at home",
        WORKER,
        "return bool(plan.sizes) and self._is_large_enough(plan)",
        "return bool(plan.sizes)",
        ("tests/unit/workers/contributing/test_router.py",),
    ),
    Mutation(
        "journal-adds-twice",
        "law 4: a journal adds a shard once",
        LIBRARY,
        "if shard in self.shards:",
        "if False:",
        ("tests/unit/services/statistics/test_journal.py",),
    ),
    Mutation(
        "unnoted",
        "law 1: what leaves is written down before",
        WORKER,
        'self.history.note(item, "leaves")',
        "pass",
        ("tests/unit/workers/leaving/test_outbox.py",),
    ),
    Mutation(
        "accepted-under-a-replaced-trunk",
        "law 2: the trunk is looked at again when a contribution is accepted",
        COORDINATOR,
        "_require_current(session, manifest)\n        require_usable",
        "pass\n        require_usable",
        ("tests/unit/coordinator/domain/test_contributions.py",),
    ),
    Mutation(
        "workflows-of-others",
        "authorisation: an owner sees the workflows of its own contributions only",
        COORDINATOR,
        """found.input["args"][0] != owner""",
        "False",
        ("tests/contract/test_auth.py",),
    ),
    Mutation(
        "fall",
        "promotions: champion moves to no version that an owner's domain falls on, unless the operator says why",
        COORDINATOR,
        "if falls and not move.override:",
        "if False:",
        ("tests/unit/coordinator/domain/test_aliases.py",),
    ),
    Mutation(
        "influence-of-oneself",
        "influence: the routers without an owner are solved without its sums",
        LIBRARY,
        "            rest -= own\n",
        "",
        ("tests/unit/services/routers/test_influence.py",),
    ),
    Mutation(
        "added-heads",
        "attack: a trunk with heads that the expert lacks",
        LIBRARY,
        "if merged.shapes.get(name) != ((*rows, *shape[1:]) if longer else shape):",
        "if False:",
        ("tests/attacks/coordinator/test_trunks.py",),
    ),
    Mutation(
        "harmful-trunk",
        "attack: a trunk that harms the owner's domain",
        WORKER,
        "if not (under.nll - own.nll) / own.tokens <= math.log(limit):",
        "if False:",
        ("tests/attacks/coordinator/test_budget.py",),
    ),
    Mutation(
        "any-trunks",
        "attack: one trunk after another",
        WORKER,
        "return TRUNK_REVEALS if first and len(trunks(history)) >= policy.trunks_per_month else None",
        "return None",
        ("tests/attacks/coordinator/test_budget.py",),
    ),
    Mutation(
        "altered-version",
        "attack: a version with other weights in the owner's slot",
        WORKER,
        "if not (folder / plan.name).is_file() or file_sha256(folder / plan.name) != _digest(plan):",
        "if not (folder / plan.name).is_file():",
        ("tests/attacks/coordinator/test_versions.py",),
    ),
    Mutation(
        "whole-row",
        "attack: an owner takes over rows of a solved trunk",
        LIBRARY,
        "frequencies = counts / sizes[:, None] + 1 / sizes.mean()",
        "frequencies = (counts + 1) / tokens[:, None]",
        ("tests/attacks/owner/test_weights.py",),
    ),
    Mutation(
        "common-part",
        "discriminants leave out what all experts' scores share",
        LIBRARY,
        "return columns - columns.mean(dim=1, keepdim=True)",
        "return columns",
        ("tests/unit/services/routers/test_solve.py",),
    ),
    Mutation(
        "far-expert",
        "attack: an expert's weights spoil the trunk",
        LIBRARY,
        "if not nearest.within(limit):",
        "if False:",
        ("tests/attacks/owner/test_weights.py",),
    ),
    Mutation(
        "any-shards",
        "attack: more shards than tokens give",
        COORDINATOR,
        "elif len(manifest.shards) > max(1, tokens // least):",
        "elif False:",
        ("tests/attacks/owner/test_sums.py",),
    ),
    Mutation(
        "named-code",
        "attack: a published tokenizer names code",
        LIBRARY,
        "return _text(path, lambda key, value: key not in hidden).encode()",
        "return path.read_bytes()",
        ("tests/attacks/test_reader.py",),
    ),
    Mutation(
        "audited-strangers",
        "attack: a stranger fills the audit log",
        COORDINATOR,
        "return status != 401 and method in _MUTATING",
        "return method in _MUTATING",
        ("tests/attacks/test_stranger.py",),
    ),
    Mutation(
        "another-size",
        "attack: a held file announced with another size",
        COORDINATOR,
        "if holding is not None and holding.size != request.size:",
        "if False:",
        ("tests/attacks/owner/test_quotas.py",),
    ),
)
