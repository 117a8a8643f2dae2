"""`moerge soup`: the training of a bank, which an interrupted run continues, and specialists."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from moerge.documents.corpus import Corpus
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import alone, file_sha256, work_folder
from moerge.models.config import read_config
from moerge.models.expert_folder import DenseExpert, check_expert, expert_files
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge_lab.soups.bank import Start, new_bank
from moerge_lab.soups.domains import embedded, pooled, pretraining_domains
from moerge_lab.soups.encoder import encoded, encoder_files
from moerge_lab.soups.folder import (
    BANK_FILE,
    ENCODER_FOLDER,
    LOG,
    SEED_FOLDER,
    Opened,
    bank_record,
    read_bank,
    tensor_bytes,
    write_bank,
    write_specialist,
)
from moerge_lab.soups.training import fitted, put, target_rows, train, train_dense
from moerge_lab.training.checkpoint import Checkpoint as Saved
from moerge_lab.training.inputs import Device, build, context_of, end_of_text, read_texts
from moerge_lab.training.log import Log, losses
from moerge_lab.training.loop import Run, Step
from moerge_proto.digests import digest_of
from moerge_proto.records import RECORD_FILE, SoupBank, Specialist


@dataclass(frozen=True)
class Wanted:
    """The settings of a bank.

    Attributes:
        tokens: of the training, rounded to whole batches.
        rank: of the matrices of E_i; 0: full.
        clusters: pretraining domains.
        support: those with a weight, in a step.
        batch: rows of a step.
        context: of the rows, in tokens; None: the default, or the models' if that is shorter.
    """

    tokens: int
    start: Start
    rank: int
    clusters: int
    support: int
    rate: float
    batch: int
    context: int | None
    seed: int
    device: Device


@dataclass(frozen=True)
class Request:
    """A checked request for a bank.

    Attributes:
        encoder: folder of the sentence encoder; None: the seed model embeds documents.
        documents: of each text.
    """

    base: DenseExpert
    encoder: Path | None
    experts: Sequence[DenseExpert]
    record: SoupBank
    documents: Sequence[Sequence[Sequence[int]]]

    @property
    def name(self) -> str:
        """The digest of all inputs."""
        return digest_of(self.record.model_dump(mode="json"))

    @property
    def steps(self) -> int:
        return self.record.tokens // (self.record.batch * self.record.context)


def read_request(
    base: Path,
    experts: Mapping[str, Path],
    encoder: Path | None,
    texts: Mapping[str, Sequence[str]],
    field: str,
    wanted: Wanted,
    progress: Progress,
) -> Request:
    """Reads and checks all inputs of a bank. Experts and texts are in the order of their names, as in the record.

    Args:
        base: folder of the seed model.
        experts: name -> folder; empty for a start without them.
        encoder: folder of a sentence encoder; None: the seed model embeds documents.
        texts: name -> its files.
        field: field or column with a document's text.

    Raises:
        MoergeError: a model, a text or a setting is unsuitable; names it and the remedy.
    """
    _require(wanted, experts)
    experts, texts = dict(sorted(experts.items())), dict(sorted(texts.items()))
    check_expert(base, None, "the seed model")
    expert_files(base)  # refuses an adapter before the training
    encoding = None if encoder is None else encoder_files(encoder)
    config = read_config(base)
    for name, folder in experts.items():
        check_expert(folder, base, name)
        if read_config(folder).tie_word_embeddings != config.tie_word_embeddings:
            what = "its head is tied to the embedding, or the seed model's is; not both"
            raise IncompatibleExpertError(what, where=f"--expert {name}", todo="train it from the seed model")
    longest = int(config.max_position_embeddings)
    context = context_of(wanted.context, longest, "the models'")
    found_texts = {
        name: read_texts(
            Corpus(files, base, text_field=field, option=f"--text {name}"), f"reading --text {name}", progress
        )
        for name, files in texts.items()
    }
    seed, members = DenseExpert("seed", base), [DenseExpert(name, folder) for name, folder in experts.items()]
    steps = max(1, round(wanted.tokens / (wanted.batch * context)))
    record = SoupBank(
        base=seed.digest,
        encoder=None if encoding is None else digest_of({name: file_sha256(path) for name, path in encoding.items()}),
        experts={each.domain: each.digest for each in members},
        start=wanted.start,
        parts=len(members or texts),
        rank=wanted.rank,
        texts={name: each.digest for name, each in found_texts.items()},
        clusters=wanted.clusters,
        support=wanted.support,
        rate=wanted.rate,
        batch=wanted.batch,
        tokens=steps * wanted.batch * context,
        context=context,
        seed=wanted.seed,
        build=build(wanted.device),
    )
    return Request(seed, encoder, members, record, [each.documents for each in found_texts.values()])


def _require(wanted: Wanted, experts: Mapping[str, Path]) -> None:
    if wanted.start == "experts" and not experts:
        todo = "give --expert NAME=DIR, or another --start"
        raise MoergeError("no expert is given", where="--start experts", todo=todo)
    if wanted.start != "experts" and experts:
        raise MoergeError("uses no expert", where=f"--start {wanted.start}", todo="omit --expert")
    if wanted.support > wanted.clusters:
        found = f"expected at most {wanted.clusters}, the number of clusters, found {wanted.support}"
        raise MoergeError(found, where="--support", todo="give a smaller one, or more --clusters")
    if wanted.rate <= 0:
        raise MoergeError("expected a number above 0", where="--rate", todo="give, for example, 0.0003")


def train_bank(request: Request, out: Path, progress: Progress) -> tuple[float, float]:
    """Trains a bank into the folder `out`. The same request continues an interrupted run.

    Returns:
        The mean losses of the first and the last tenth of the steps.

    Raises:
        MoergeError: `out` has other content, another run uses it, or the training failed.
    """
    out = out.absolute()
    with alone(work_folder(out)):
        work = work_folder(out) / request.name[:16]
        if not (out / RECORD_FILE).is_file():
            _train(request, work, out, progress)
        elif bank_record(out) != request.record:
            raise MoergeError("contains another bank", where=str(out), todo="name a new folder, or remove this one")
        for path in work_folder(out).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    return losses(out / LOG)


def _train(request: Request, work: Path, out: Path, progress: Progress) -> None:
    made = request.record
    work.mkdir(parents=True, exist_ok=True)
    model = load(request.base.folder, device=made.build.device)
    documents = pooled(request.documents, made.tokens, made.seed)
    vectors = _vectors(model, request.base.folder, request.encoder, documents, made.context, progress)
    end = end_of_text(request.base.folder)
    domains = pretraining_domains(documents, vectors, made.clusters, made.context, end, made.seed)
    bank = new_bank(
        model,
        made.start,
        [each.checkpoint for each in request.experts],
        made.parts,
        made.rank,
        len(domains.rows),
        made.seed,
    )
    log, run = Log(work / LOG), Run(request.steps, made.rate, seed=made.seed)
    with progress.track("training", made.tokens, "tokens") as tracker:

        def done(step: Step) -> None:
            log.done(step)
            tracker.advance(step.tokens)

        def resumed(steps: int) -> None:
            log.resumed(steps)
            tracker.advance(steps * made.batch * made.context)

        saved = Saved(work / "checkpoint.safetensors")
        train(model, bank, domains.rows, made.support, made.batch, run, done, saved, resumed)
    models = {SEED_FOLDER: expert_files(request.base.folder)}
    if request.encoder is not None:
        models[ENCODER_FOLDER] = encoder_files(request.encoder)
    write_bank(made, models, bank, domains.clusters, work / LOG, out)


def _vectors(
    model: PreTrainedModel,
    seed: Path,
    encoder: Path | None,
    documents: Sequence[Sequence[int]],
    context: int,
    progress: Progress,
) -> Tensor:
    if encoder is None:
        return embedded(model, documents, context, "embedding documents", progress)
    return encoded(encoder, seed, documents, context, str(model.device), progress)


@dataclass(frozen=True)
class Target:
    """The settings of a specialist.

    Attributes:
        fit: whether coefficients are fitted to the text.
        finetune: tokens of training on the text; 0: none.
        rate: of that training.
    """

    fit: bool
    finetune: int
    rate: float
    seed: int
    device: Device


def instantiate(
    folder: Path, files: Sequence[str], field: str, target: Target, out: Path, progress: Progress
) -> Specialist:
    """Makes a specialist of a bank for a text, in the new folder `out`, and returns its record.

    Args:
        folder: of the bank.
        files: of the text, all of whose documents are used.
        field: field or column with a document's text.

    Raises:
        MoergeError: bank, text or folder is unsuitable.
    """
    opened = read_bank(folder, target.device)
    made, model = opened.record, opened.model
    corpus = Corpus(files, opened.seed, text_field=field, option="--text")
    text = read_texts(corpus, "reading --text", progress, held_out=False)
    vectors = _vectors(model, opened.seed, opened.encoder, text.documents, made.context, progress)
    weights = opened.clusters.weights(vectors)
    alpha = opened.bank.alpha(weights)
    rows = target_rows(text.documents, end_of_text(opened.seed), made.context)
    if (target.fit or target.finetune) and rows.shape[1] < 2:
        raise MoergeError("expected two tokens or more, found one", where="--text", todo="give more text")
    if target.fit:
        alpha = fitted(model, opened.bank, alpha, rows, made.batch, target.seed)
    put(model, opened.bank.instantiate(alpha))
    tokens = _finetune(opened, rows, target, progress) if target.finetune else 0
    record = Specialist(
        bank=made,
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
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with progress.track(f"writing {out.name}", tensor_bytes(opened), "B") as tracker:
        write_specialist(opened, record, parameters, out, tracker.advance)
    return record


def _finetune(opened: Opened, rows: Tensor, target: Target, progress: Progress) -> int:
    """Trains the model on the target's rows, and returns the number of tokens."""
    size = opened.record.batch
    steps = max(1, round(target.finetune / (size * rows.shape[1])))
    with progress.track("fine-tuning", steps * size * rows.shape[1], "tokens") as tracker:
        run = Run(steps, target.rate, seed=target.seed)
        train_dense(opened.model, [rows], None, size, run, lambda step: tracker.advance(step.tokens))
    return steps * size * rows.shape[1]
