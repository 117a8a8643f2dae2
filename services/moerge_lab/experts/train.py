"""Training of dense experts: a Llama seed, small or pretrained, and an expert per domain from it."""

import hashlib
import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import Parameter
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from moerge.errors import MoergeError
from moerge.files import locked
from moerge.models.dense import place
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import family_of
from moerge.progress import Progress, Tracker
from moerge_lab.experts.smollm import make_seed
from moerge_lab.training.batches import joined
from moerge_lab.training.job import Job
from moerge_lab.training.job import train as run_job
from moerge_lab.training.loop import Run
from moerge_lab.training.parameters import Which

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
_SEED_THREADS, _EXPERT_THREADS = 2, 1  # part of the training: the number changes the order of sums


@dataclass(frozen=True)
class Phase:
    """One training run: its number of tokens, and AdamW's highest learning rate."""

    tokens: int
    learning_rate: float


@dataclass(frozen=True)
class Scratch:
    """A seed trained from random weights on all domains' texts, with its own tokenizer."""

    vocabulary: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    phase: Phase


@dataclass(frozen=True)
class Training:
    """All inputs of the weights except the texts. A row is `context` tokens, a step is `batch_rows` rows.

    Without `scratch` the seed is SmolLM2-135M-Instruct. `end` is the token after each text. `bfloat16` autocasts the
    forward and backward pass; weights and optimizer are float32. `mlps`: experts train their MLPs alone, so that they
    keep the seed's body and head; with a `rank`, as PEFT adapters (LoRA, its scale twice the rank).
    """

    scratch: Scratch | None
    for_expert: Phase
    end: str = EOS
    context: int = 256
    batch_rows: int = 8
    weight_decay: float = 0.1
    warmup: float = 0.1  # share of a phase's steps
    seed: int = 1
    bfloat16: bool = False
    mlps: bool = False
    rank: int = 0


DEMO = Training(
    Scratch(1024, 96, 256, layers=2, heads=3, phase=Phase(tokens=250_000, learning_rate=6e-3)),
    for_expert=Phase(tokens=60_000, learning_rate=3e-3),
    context=128,
    batch_rows=16,
)


@dataclass(frozen=True)
class Trained:
    seed: Path
    experts: dict[str, Path]

    @classmethod
    def of(cls, texts: Mapping[str, Mapping[str, Path]], folder: Path, training: Training = DEMO) -> Self:
        files = _train_files(texts)
        home = folder / _digest(training, files)[:16]
        return cls(home / "seed", {domain: home / domain for domain in files})

    @property
    def complete(self) -> bool:
        return all(expert.exists() for expert in self.experts.values())


def train(
    texts: Mapping[str, Mapping[str, Path]],
    folder: Path,
    progress: Progress,
    training: Training = DEMO,
    device: str = "cpu",
) -> Trained:
    """Trains the models missing from `folder`: the seed, then the experts, on a CPU concurrently.

    The models are in `folder/{digest}`, a digest of the training and its texts: the seed, and one folder per domain,
    in float32. Each is renamed into place when complete. An interrupted training resumes from its last checkpoint; of
    several at once, one trains and the others wait.

    Args:
        texts: for each domain, its splits' files from `corpora.write`; only "train" is read.
    """
    finished = Trained.of(texts, folder, training)
    if finished.complete:
        return finished
    documents = {domain: _read(file) for domain, file in _train_files(texts).items()}
    home = finished.seed.parent
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.with_name(f"{home.name}.lock"), -1):
        trainer = _Trainer(training, device, progress)
        _made(finished.seed, partial(trainer.seed, documents))
        tokenizer = DenseFiles(finished.seed).tokenizer
        missing = {domain: document for domain, document in documents.items() if not finished.experts[domain].exists()}
        if missing:  # another process may have trained them meanwhile
            trainer.experts(missing, finished.seed, tokenizer)
    return finished


class _Trainer:
    def __init__(self, training: Training, device: str, progress: Progress) -> None:
        self._training, self._device, self._progress = training, device, progress

    def seed(self, documents: Mapping[str, list[str]], folder: Path, work: Path) -> None:
        scratch = self._training.scratch
        if scratch is None:
            make_seed(folder)
            return
        tokenizer = _tokenizer(documents, scratch.vocabulary)
        rows = torch.cat([_rows(texts, tokenizer, self._training) for texts in documents.values()])
        with _reproducible(_SEED_THREADS, self._training.seed):
            model = LlamaForCausalLM(_config(scratch, self._training.context, tokenizer))
            self._fit(model, rows, scratch.phase, work, self._progress, "training the seed")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def experts(self, documents: Mapping[str, list[str]], seed: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Trains these domains' experts beside the seed's folder, one per core at a time."""
        stopped, loading, phase = threading.Event(), threading.Lock(), self._training.for_expert
        total = len(documents) * self._run(phase).steps * self._training.batch_rows * self._training.context
        with (
            _reproducible(_EXPERT_THREADS, self._training.seed),
            self._progress.track(f"training {len(documents)} experts", total, "tokens") as tracker,
            ThreadPoolExecutor(os.cpu_count() if self._device == "cpu" else 1) as pool,
        ):
            shared = _Shared(tracker, stopped)

            def make(domain: str, folder: Path, work: Path) -> None:
                with loading:  # not thread-safe
                    model: PreTrainedModel = LlamaForCausalLM.from_pretrained(seed, dtype=torch.float32)
                trains: Which | Mapping[str, Parameter] = _mlps(model) if self._training.mlps else "all"
                if self._training.rank:
                    model, trains = _adapted(model, self._training.rank)
                rows = _rows(documents[domain], tokenizer, self._training)
                self._fit(model, rows, phase, work, shared, domain, trains)
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)

            try:
                list(pool.map(lambda domain: _made(seed.with_name(domain), partial(make, domain)), documents))
            except BaseException:
                stopped.set()  # Ctrl-C ends the other trainings too
                raise

    def _run(self, phase: Phase) -> Run:
        training = self._training
        return Run(
            phase.tokens // (training.batch_rows * training.context),
            training.batch_rows,
            phase.learning_rate,
            training.warmup,
            training.weight_decay,
            seed=training.seed,
            bfloat16=training.bfloat16,
        )

    def _fit(
        self,
        model: PreTrainedModel,
        rows: Tensor,
        phase: Phase,
        work: Path,
        progress: Progress,
        title: str,
        trains: Which | Mapping[str, Parameter] = "all",
    ) -> None:
        place(model, self._device)
        run_job(Job(model, self._run(phase), [rows], trains=trains, folder=work, progress=progress, title=title))


class _Shared:
    """One display of several trainings, which a stop ends."""

    def __init__(self, tracker: Tracker, stopped: threading.Event) -> None:
        self._tracker, self._stopped = tracker, stopped

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Tracker]:
        yield self

    def advance(self, n: int) -> None:
        if self._stopped.is_set():
            raise InterruptedError
        self._tracker.advance(n)


def _train_files(texts: Mapping[str, Mapping[str, Path]]) -> dict[str, Path]:
    return {domain: splits["train"] for domain, splits in texts.items()}


def _mlps(model: PreTrainedModel) -> dict[str, Parameter]:
    parameters = dict(model.named_parameters())
    return {name: parameters[name] for name in family_of(model.config).dense_mlp_names(model.config)}


def _adapted(model: PreTrainedModel, rank: int) -> tuple[PreTrainedModel, dict[str, Parameter]]:
    """The model with LoRA factors at its MLPs, and these."""
    if importlib.util.find_spec("peft") is None:
        raise MoergeError("isn't installed", where="peft", todo="pip install peft")
    from peft import LoraConfig, get_peft_model

    modules = sorted({name.split(".")[-2] for name in _mlps(model)})
    adapted: Any = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules))
    return adapted, {name: factor for name, factor in adapted.named_parameters() if factor.requires_grad}


def _digest(training: Training, files: Mapping[str, Path]) -> str:
    corpora = {domain: hashlib.sha256(file.read_bytes()).hexdigest() for domain, file in files.items()}
    fields = {name: value for name, value in asdict(training).items() if name not in {"mlps", "rank"} or value}
    record = {"training": fields, "corpora": corpora}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def _made(folder: Path, make: Callable[[Path, Path], object]) -> None:
    """Makes the folder if it is missing: in a work folder, which has the checkpoint, and renamed at the end."""
    work = folder.with_name(f".{folder.name}.work")
    if not folder.exists():
        part = work / "model"
        shutil.rmtree(part, ignore_errors=True)  # of an interrupted run
        part.mkdir(parents=True)
        make(part, work)
        os.rename(part, folder)
    shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _reproducible(threads: int, seed: int) -> Iterator[None]:
    """Fixes torch's number of threads and its random state, and restores both."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def _tokenizer(documents: Mapping[str, list[str]], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on all domains; adds BOS before a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((text for texts in documents.values() for text in texts), trainer)
    bpe.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def _rows(texts: list[str], tokenizer: PreTrainedTokenizerBase, training: Training) -> Tensor:
    """All texts joined and cut into rows, [rows, context] int64."""
    end: Any = tokenizer.convert_tokens_to_ids(training.end)
    return joined(tokenizer(texts)["input_ids"], end, training.context)


def _config(scratch: Scratch, context: int, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=scratch.vocabulary,
        hidden_size=scratch.hidden_size,
        intermediate_size=scratch.intermediate_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.heads,
        max_position_embeddings=4 * context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
