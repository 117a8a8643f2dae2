"""Soup-of-Experts: banks and the specialists made from them. Nobody publishes either."""

from typing import Literal

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.tuned import Build


class SoupBank(Message):
    """All inputs of a bank, which is trained on pooled text; its folder's moerge.json.

    `base`: digest of the seed model. `encoder`: of the sentence encoder; None: the seed model embeds documents.
    `experts`: name -> digest, empty if none was used. `parts`: number of E_i. `texts`: name -> digest of its documents'
    digests. `clusters`: requested pretraining domains. `tokens`: of the training.
    """

    kind: Literal["soup"] = "soup"
    pooled_text: Literal[True] = True
    base: Digest
    encoder: Digest | None = None
    experts: dict[str, Digest]
    start: Literal["experts", "seed", "scratch"]
    parts: int
    rank: int
    texts: dict[str, Digest]
    clusters: int
    support: int
    rate: float
    batch: int
    tokens: int
    context: int
    seed: int
    build: Build


class Specialist(Message):
    """All inputs of a specialist; its folder's moerge.json.

    `bank_file`: SHA-256 of the bank's parameters. `text`: digest of the target's documents' digests. `weights`: of the
    pretraining domains. `coefficients`: of the E_i. `finetune`: tokens of training on the target.
    """

    kind: Literal["specialist"] = "specialist"
    bank: SoupBank
    bank_file: Digest
    text: Digest
    documents: int
    weights: list[float]
    coefficients: list[float]
    fit: bool
    finetune: int
    rate: float
    seed: int
    build: Build
