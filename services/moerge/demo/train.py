"""Trains dense experts: one tokenizer, a small Llama seed, and an expert per domain from it."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moerge.models.dense import place
from moerge.progress import Progress, Tracker

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
THREADS = 2  # part of the training: another number sums in another order


@dataclass(frozen=True)
class Phase:
    """One training run: how many tokens, and AdamW's highest learning rate."""

    tokens: int
    learning_rate: float


@dataclass(frozen=True)
class Training:
    """All that decides the weights but the texts. A row is `context` tokens, a step is `batch_rows` rows."""

    vocabulary: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 1024
    layers: int = 3
    heads: int = 3
    context: int = 256
    batch_rows: int = 8
    weight_decay: float = 0.1
    warmup: float = 0.1  # share of a phase's steps
    seed: int = 1
    for_seed: Phase = Phase(tokens=1_800_000, learning_rate=4e-3)
    for_expert: Phase = Phase(tokens=250_000, learning_rate=1e-3)


DEMO = Training()


@dataclass(frozen=True)
class Trained:
    """Folders of what was trained: the seed, and each domain's expert, which began as the seed."""

    seed: Path
    experts: dict[str, Path]


def train(
    texts: Mapping[str, Mapping[str, Path]],
    folder: Path,
    progress: Progress,
    training: Training = DEMO,
    device: str = "cpu",
) -> Trained:
    """Trains what `folder` doesn't hold yet.

    Everything stands in `folder/{digest}`, a digest of the training and its texts: the tokenizer, the
    seed, and one folder per domain (config.json, float32 model.safetensors, tokenizer). Each is renamed into
    place when it is complete, so an interrupted run continues; of several at once, one trains and the others wait. The
    same machine gives the same bytes.

    Args:
        texts: for each domain, its splits' files as `corpora.write` returns them; only "train" is read.
        folder: where the trained folders are kept.
        progress: shows each training, in tokens.
        device: torch device.
    """
    files = {domain: splits["train"] for domain, splits in texts.items()}
    home = folder / _digest(training, files)[:16]
    finished = Trained(home / "seed", {domain: home / domain for domain in files})
    if all(expert.exists() for expert in finished.experts.values()):
        return finished
    documents = {domain: _read(file) for domain, file in files.items()}
    with _alone(home, progress), _reproducible(training.seed):
        tokenizer_folder = _made(home / "tokenizer", partial(_make_tokenizer, documents, training.vocabulary))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
        rows = {domain: _rows(each, tokenizer, training.context) for domain, each in documents.items()}
        trainer = _Trainer(training, tokenizer, device, progress)
        _made(finished.seed, partial(trainer.seed, torch.cat(list(rows.values()))))
        for domain, each in rows.items():
            _made(home / domain, partial(trainer.expert, domain, each, finished.seed))
    return finished


class _Trainer:
    """Makes the model folders: every one with the same tokenizer."""

    def __init__(self, training: Training, tokenizer: PreTrainedTokenizerFast, device: str, progress: Progress) -> None:
        self._training, self._tokenizer, self._device, self._progress = training, tokenizer, device, progress

    def seed(self, rows: Tensor, folder: Path) -> None:
        model = LlamaForCausalLM(_config(self._training, self._tokenizer))
        self._train(model, rows, self._training.for_seed, "seed", folder)

    def expert(self, domain: str, rows: Tensor, seed: Path, folder: Path) -> None:
        model = LlamaForCausalLM.from_pretrained(seed, dtype=torch.float32)
        self._train(model, rows, self._training.for_expert, f"{domain} expert", folder)

    def _train(self, model: LlamaForCausalLM, rows: Tensor, phase: Phase, title: str, folder: Path) -> None:
        step_tokens = self._training.batch_rows * self._training.context
        steps = phase.tokens // step_tokens
        place(model, self._device)
        with self._progress.track(f"training the {title}", steps * step_tokens, "tokens") as tracker:
            _fit(model, _batches(rows, steps, self._training), phase.learning_rate, steps, self._training, tracker)
        model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)


def _digest(training: Training, files: Mapping[str, Path]) -> str:
    corpora = {domain: hashlib.sha256(file.read_bytes()).hexdigest() for domain, file in files.items()}
    record = {"recipe": asdict(training), "corpora": corpora}  # its first name, under which caches were filled
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def _made(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made in a sibling and renamed unless it is there already."""
    if folder.exists():
        return folder
    part = folder.with_name(f".{folder.name}.part")
    if part.exists():
        shutil.rmtree(part)  # of a run that was interrupted
    part.mkdir(parents=True)
    make(part)
    os.rename(part, folder)
    return folder


@contextmanager
def _alone(home: Path, progress: Progress) -> Iterator[None]:
    """Waits while another process trains there."""
    home.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home.with_name(f"{home.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        with progress.track("waiting for another training of them", 1, "trainings") as tracker:
            lock.acquire()
            tracker.advance(1)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Fixes torch's number of threads and its random state, and puts both back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _make_tokenizer(documents: Mapping[str, list[str]], vocabulary: int, folder: Path) -> None:
    """Trains a byte-level BPE tokenizer on all domains, which puts BOS before a text."""
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
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)


def _rows(texts: list[str], tokenizer: PreTrainedTokenizerFast, context: int) -> Tensor:
    """BOS text EOS of all texts on end, cut into rows: [rows, context] int64. The rest is left out."""
    end = tokenizer.convert_tokens_to_ids(EOS)
    ids = torch.tensor([token for row in tokenizer(texts)["input_ids"] for token in [*row, end]])
    return ids[: len(ids) // context * context].view(-1, context)


def _config(training: Training, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=training.vocabulary,
        hidden_size=training.hidden_size,
        intermediate_size=training.intermediate_size,
        num_hidden_layers=training.layers,
        num_attention_heads=training.heads,
        num_key_value_heads=training.heads,
        max_position_embeddings=4 * training.context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _batches(rows: Tensor, steps: int, training: Training) -> Iterator[Tensor]:
    """`steps` batches of rows, [batch_rows, context] int64, from shuffled passes over all rows."""
    order, size = torch.Generator().manual_seed(training.seed), training.batch_rows
    passes = math.ceil(steps * size / len(rows))
    drawn = torch.cat([torch.randperm(len(rows), generator=order) for _ in range(passes)])
    for step in range(steps):
        yield rows[drawn[step * size : (step + 1) * size]]


def _fit(
    model: LlamaForCausalLM,
    batches: Iterator[Tensor],
    learning_rate: float,
    steps: int,
    training: Training,
    tracker: Tracker,
) -> None:
    """Trains the model in place: AdamW, a linear warmup, then a cosine decay to zero."""
    decay, device = training.weight_decay, model.device
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=decay, fused=True)
    bfloat16 = device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()  # there twice as fast
    model.train()
    for step, batch in enumerate(batches):
        ids = batch.to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * _share(step, steps, training.warmup)
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tracker.advance(ids.numel())


def _share(step: int, steps: int, share: float) -> float:
    """The share of the highest learning rate at a step; it rises over the first `share` of them."""
    warmup = max(1, round(share * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
