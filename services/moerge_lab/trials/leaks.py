"""`leaks`: the information about an owner's text that forged bodies of the small experts extract."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from moerge.documents.corpus import Corpus
from moerge.errors import IncompatibleExpertError
from moerge.merging.local import LocalBody, local_body
from moerge.models.batches import batches
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.tokens import Tokens
from moerge.statistics.contribution import body_contribution, router_contribution
from moerge.statistics.features import run
from moerge.statistics.integers import to_floats, unpack
from moerge.trunk.stray import require_near
from moerge_lab.trials.inputs import inputs_of
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.policy import Policy

MARKS = (1, 8, 16, 32, 48, 64, 96, 128)
GAIN, OUTPUT, VALUE = (
    f"model.layers.0.{name}.weight" for name in ("input_layernorm", "self_attn.o_proj", "self_attn.v_proj")
)
Tensors = dict[str, Tensor]


def _faint(honest: Tensors, factor: float) -> Tensors:
    """A body whose first layer attends less, by four factors."""
    changed = {name: honest[name] * factor for name in (GAIN, VALUE, OUTPUT)}
    return {**honest, **changed, EMBEDDING: honest[EMBEDDING] / factor}


def _solved_counts(gram: Tensor, body: Tensors) -> Tensor:
    """[V]: the counts for which the sum of each token's squared feature is nearest to the gram."""
    embedding = body[EMBEDDING].double()
    features = embedding / embedding.square().mean(dim=1, keepdim=True).sqrt()
    products = (features @ features.T).square()
    products += 1e-9 * products.diagonal().mean() * torch.eye(len(products))
    solution: Tensor = torch.linalg.solve(products, ((features @ gram) * features).sum(dim=1))
    return solution.round()


def _marked(honest: Tensors, tokens: Sequence[int], frequency: Tensor) -> tuple[Tensors, Tensor]:
    """A body with a separate direction for each of these tokens, and those directions, [H, k]."""
    embedding, output = honest[EMBEDDING].double(), honest[OUTPUT].double()
    used = embedding.T @ (frequency[:, None] * embedding)
    directions = torch.linalg.eigh(used).eigenvectors[:, : len(tokens)]
    cleared = embedding - embedding @ directions @ directions.T
    for place, token in enumerate(tokens):
        cleared[token] += cleared[token].norm() * directions[:, place]
    output -= directions @ directions.T @ output
    return {**honest, EMBEDDING: cleared.float(), OUTPUT: output.float()}, directions


def _rank_of_the_token_before(read: Tensor, token: int, before: int, body: Tensors) -> int:
    """The rank of the true preceding token, by the cosine of attention's addition from it alone."""
    embedding = body[EMBEDDING].double()
    normed = embedding / embedding.pow(2).mean(dim=1, keepdim=True).sqrt() * body[GAIN].double()
    added = normed @ body[VALUE].double().T @ body[OUTPUT].double().T
    own = embedding[token]
    left = read - own * (read @ own) / (own @ own)
    scores = cosine_similarity(added - torch.outer(added @ own, own) / (own @ own), left, dim=1)
    return int((scores > scores[before]).sum()) + 1


class Attacked:
    """An owner, its text, and the honest body."""

    def __init__(self, domain: str, documents: int, max_stray: float, home: Path) -> None:
        _, sources, *_ = inputs_of("small")
        experts = {name: DenseExpert(name, source.expert) for name, source in sources.items()}
        self.expert, self.home, self.max_stray = experts[domain], home, max_stray
        corpus = Corpus(sources[domain].text, self.expert)
        texts = [document for _, _, document in corpus.documents()][:documents]
        self.rows = [Tokens(corpus.encode(text).ids[:256]) for text in texts]
        self.ids = [token for row in self.rows for token in row.ids]
        self.counts = torch.bincount(torch.tensor(self.ids), minlength=self.expert.config.vocab_size)
        self.grams = body_contribution(self.expert, self.rows, home / "grams")
        self.body: LocalBody = local_body(list(experts.values()), home / "body", "average")
        self.honest = load_file(self.body.path)
        self.forged = home / "forged"
        copytree(self.body.path.parent, self.forged)

    def under(self, tensors: Tensors) -> tuple[str, Tensor, Tensor]:
        """The owner's verdict on a body; the first layer's gram as sent; every token's feature by token order."""
        body, sums = replace(self.body, path=self.forged / self.body.path.name), self.home / "sums"
        sums.unlink(missing_ok=True)  # of another body
        save_file(tensors, body.path, metadata={"format": "pt"})
        try:
            verdict = str(require_near(self.expert, body, self.max_stray, self.grams))
        except IncompatibleExpertError as error:
            verdict = f"refused: {error}".splitlines()[0]
        (model, gains), seen = domain_model(self.expert, body), list[Tensor]()
        with StatisticsFile(router_contribution(self.expert, body, self.rows, sums)) as file:
            gram = torch.from_numpy(unpack(to_floats(file.gram(0), file.manifest.exponents[0]), gains.shape[1]))
        for batch in batches(self.rows, 4096):
            mlp = model.get_submodule(self.expert.family.mlp_module.format(layer=0))
            run(model, batch, {"input_ids": batch.input_ids}, {0: mlp}, lambda _, x: seen.append(x / gains[0]), mlp)
        return verdict, gram, torch.cat(seen).double()

    def print_counts(self) -> None:
        rare = (self.counts > 0) & (self.counts < 10)
        for factor in (1.0, 0.85, 0.5, 0.1):
            tensors = _faint(self.honest, factor)
            verdict, gram, _ = self.under(tensors)
            exact = int((_solved_counts(gram, tensors) == self.counts)[rare].sum())
            print(f"factors {factor:g}: {exact} of {int(rare.sum())} counts from 1 to 9 are exact; {verdict}")

    def print_vectors(self) -> None:
        before = dict(zip(self.ids[1:], self.ids, strict=False))
        starts = {row.ids[0] for row in self.rows}
        once = [token for token in (self.counts == 1).nonzero().flatten().tolist() if token not in starts]
        order = torch.cat([batch.input_ids[batch.counted] for batch in batches(self.rows, 4096)])
        frequency = (self.counts + 1).double() / (self.counts + 1).sum()
        for number in (item for item in MARKS if item <= len(once)):
            chosen, cosines, ranks = once[:: len(once) // number][:number], list[float](), list[int]()
            tensors, directions = _marked(self.honest, chosen, frequency)
            verdict, gram, features = self.under(tensors)
            for place, token in enumerate(chosen):
                read, [true] = gram @ directions[:, place], features[order == token]
                cosines.append(float(cosine_similarity(read, true, dim=0)))
                ranks.append(_rank_of_the_token_before(read, token, before[token], tensors))
            print(
                f"{number} tokens: cosine at least {min(cosines):.4f}; the token before is first for {ranks.count(1)},"
                f" of the first ten for {sum(rank <= 10 for rank in ranks)}; {verdict}"
            )


def leaks(
    domain: Annotated[str, typer.Option(help="Whose text.")] = "medicine",
    documents: Annotated[int, typer.Option(min=1, help="Documents of that text.")] = 130,
    max_stray: Annotated[float, typer.Option(help="Of the owner's policy.")] = Policy().max_stray,
) -> None:
    """Measure the information about an owner's text that forged bodies extract.

    Counts: factors reduce attention's inputs, computation and outputs, and enlarge embeddings. Then a feature depends
    nearly on its token alone, and the first layer's gram is solved for the counts of all tokens.

    Vectors: the directions of the residual that the embedding uses least are cleared. Each is given to one token that
    occurs once in the text, so a row of the gram is that token's feature: its embedding, and attention's addition.
    """
    with TemporaryDirectory() as home:
        attacked = Attacked(domain, documents, max_stray, Path(home))
        print(f"{len(attacked.rows)} documents, {len(attacked.ids)} tokens of {domain}")
        attacked.print_counts()
        attacked.print_vectors()
