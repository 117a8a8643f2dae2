"""`moerge soup`: the training of a bank, which an interrupted run continues, and specialists."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from moerge.documents.corpus import Corpus
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import file_sha256
from moerge.models.expert_folder import DenseExpert, check_expert, expert_files
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge_lab.soups.bank import Start, new_bank
from moerge_lab.soups.domains import embedded, pooled, pretraining_domains
from moerge_lab.soups.folder import (
    BANK_FILE,
    read_bank,
    write_bank,
    write_specialist,
)
from moerge_lab.soups.training import bank_job, fitted, put, target_rows
from moerge_lab.training.folder import make_once
from moerge_lab.training.inputs import Device, build, context_of, end_of_text, read_texts
from moerge_lab.training.job import LOG, Job, train
from moerge_lab.training.loop import Run, losses
from moerge_proto.records import SoupBank, Specialist


class Settings(NamedTuple):
    """The settings of a bank, as in its record."""

    start: Start
    rank: int
    clusters: int
    support: int
    rate: float
    batch: int
    seed: int


class Request(NamedTuple):
    """A checked request for a bank, with the documents of each text."""

    base: DenseExpert
    experts: Sequence[DenseExpert]
    record: SoupBank
    documents: Sequence[Sequence[Sequence[int]]]


def read_request(
    base: Path,
    experts: Mapping[str, Path],
    texts: Mapping[str, Sequence[str]],
    field: str,
    settings: Settings,
    tokens: int,
    context: int | None,
    device: Device,
    progress: Progress,
) -> Request:
    """Reads and checks all inputs of a bank. Experts and texts are in the order of their names, as in the record.

    Args:
        base: folder of the seed model.
        experts: name -> folder; empty for a start without them.
        texts: name -> its files.
        field: field or column with a document's text.
        tokens: of the training, rounded to whole batches.

    Raises:
        MoergeError: a model, a text or a setting is unsuitable; names it and the remedy.
    """
    _require(settings, experts)
    seed, members = DenseExpert("seed", base), [DenseExpert(*item) for item in sorted(experts.items())]
    check_expert(seed, None, "the seed model")
    expert_files(seed)  # refuses an adapter before the training
    for member in members:
        check_expert(member, seed, member.domain)
        if member.config.tie_word_embeddings != seed.config.tie_word_embeddings:
            what = "its head is tied to the embedding, or the seed model's is; not both"
            raise IncompatibleExpertError(what, where=f"`expert` {member.domain}", todo="train it from the seed model")
    context = context_of(context, int(seed.config.max_position_embeddings), "the models'")
    read = {}
    for name, files in sorted(texts.items()):
        corpus = Corpus(files, seed, text_field=field, settings=("text_field",), where=f"`text` {name}")
        read[name] = read_texts(corpus, f"reading text {name}", progress)
    run = Run.of(tokens, context, settings.batch, settings.rate)
    record = SoupBank(
        **settings._asdict(),
        base=seed.digest,
        experts={member.domain: member.digest for member in members},
        parts=len(members or texts),
        texts={name: text.digest for name, text in read.items()},
        tokens=run.steps * run.batch * context,
        context=context,
        build=build(device),
    )
    return Request(seed, members, record, [text.documents for text in read.values()])


def _require(settings: Settings, experts: Mapping[str, Path]) -> None:
    if settings.start == "experts" and not experts:
        todo = "give `expert`, or another `start`"
        raise MoergeError("no expert is given", where="`start` experts", todo=todo)
    if settings.start != "experts" and experts:
        raise MoergeError("uses no expert", where=f"`start` {settings.start}", todo="omit `expert`")
    if settings.support > settings.clusters:
        what = f"expected at most {settings.clusters}, the number of clusters, found {settings.support}"
        raise MoergeError(what, where="`support`", todo="give a smaller one, or more `clusters`")
    if settings.rate <= 0:
        raise MoergeError("expected a number above 0", where="`rate`", todo="give, for example, 0.0003")


def train_bank(request: Request, out: Path, progress: Progress) -> tuple[float, float]:
    """Trains a bank into the folder `out`, and returns the mean losses of the first and the last tenth of the steps.

    The same request continues an interrupted run.

    Raises:
        MoergeError: `out` has other content, another run uses it, or the training failed.
    """
    make_once(out.absolute(), request.record, lambda work: _train(request, work, out.absolute(), progress))
    return losses(out / LOG)


def _train(request: Request, work: Path, out: Path, progress: Progress) -> None:
    record, base = request.record, request.base
    model = load(base.folder, device=record.build.device)
    documents = pooled(request.documents, record.tokens, record.seed)
    vectors = embedded(model, documents, record.context, "embedding documents", progress)
    domains = pretraining_domains(documents, vectors, record.clusters, record.context, end_of_text(base), record.seed)
    experts = [expert.checkpoint for expert in request.experts]
    bank = new_bank(model, record.start, experts, record.parts, record.rank, len(domains.rows), record.seed)
    run = Run.of(record.tokens, record.context, record.batch, record.rate, seed=record.seed)
    job = bank_job(model, bank, domains.rows, record.support, run)
    train(replace(job, folder=work, progress=progress))
    write_bank(record, base, bank, domains.clusters, work / LOG, out)


class Target(NamedTuple):
    """The settings of a specialist: `finetune` is a number of tokens, and `rate` that training's; 0: none."""

    fit: bool
    finetune: int
    rate: float
    seed: int
    device: Device


def instantiate(
    folder: Path, files: Sequence[str], field: str, target: Target, out: Path, progress: Progress
) -> Specialist:
    """Makes a specialist of a bank for all documents of a text, in the new folder `out`, and returns its record.

    Raises:
        MoergeError: bank, text or folder is unsuitable.
    """
    opened = read_bank(folder, target.device)
    bank, model = opened.record, opened.model
    corpus = Corpus(files, opened.seed, text_field=field, settings=("text_field",), where="`text`")
    text = read_texts(corpus, "reading text", progress, held_out=False)
    vectors = embedded(model, text.documents, bank.context, "embedding documents", progress)
    weights = opened.clusters.weights(vectors)
    alpha = opened.bank.alpha(weights)
    rows = target_rows(text.documents, end_of_text(opened.seed), bank.context)
    if (target.fit or target.finetune) and rows.shape[1] < 2:
        raise MoergeError("expected two tokens or more, found one", where="`text`", todo="give more text")
    if target.fit:
        alpha = fitted(model, opened.bank, alpha, rows, bank.batch, target.seed)
    put(model, opened.bank.instantiate(alpha))
    tokens = 0
    if target.finetune:
        run = Run.of(target.finetune, rows.shape[1], bank.batch, target.rate, seed=target.seed)
        tokens = train(Job(model, run, [rows], progress=progress, title="fine-tuning")).tokens
    record = Specialist(
        bank=bank,
        bank_file=file_sha256(folder / BANK_FILE),
        text=text.digest,
        documents=len(text.documents),
        weights=weights.tolist(),
        coefficients=alpha.tolist(),
        fit=target.fit,
        finetune=tokens,
        rate=target.rate,
        seed=target.seed,
        build=build(target.device),
    )
    write_specialist(opened, record, out, progress)
    return record
