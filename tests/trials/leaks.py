"""`python -m trials.leaks`: the information about an owner's text that forged trunks of the demo's experts extract.

Counts: factors reduce attention's inputs, computation and outputs, and enlarge embeddings. Then the coordinator assumes
that a feature depends on its token alone, and solves the first layer's gram for the counts of all tokens.

Vectors: the residual's directions with the least use by the embedding are cleared in the embedding and in the first
layer's attention, and each is given to one token that occurs once in the text. A row of the gram is then that token's
feature: its embedding, and attention's addition from the text before it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import AutoTokenizer

from moerge.errors import IncompatibleExpertError
from moerge.files import cache_folder
from moerge.merging.local import local_trunk
from moerge.models.batches import batches
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert
from moerge.models.families import EMBEDDING
from moerge.models.tokens import Tokens
from moerge.progress import progress
from moerge.statistics.contribution import trunk_contribution
from moerge.statistics.integers import to_floats, unpack
from moerge.statistics.passes import RouterPass
from moerge.trunk.stray import require_near
from moerge_lab.table.presets import PRESETS
from moerge_proto.statistics_file import exponent
from moerge_workers.policy import Policy
from support.models import on_trunk
from support.passes import sums_of, visit_features

DOCUMENTS, MARKS = 130, (1, 8, 16, 32, 48, 64, 96, 128)
GAIN, OUTPUT, VALUE = (
    f"model.layers.0.{name}.weight" for name in ("input_layernorm", "self_attn.o_proj", "self_attn.v_proj")
)


def faint(honest: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """A trunk whose first layer attends less, by four factors."""
    changed = {name: honest[name] * factor for name in (GAIN, VALUE, OUTPUT)}
    return {**honest, **changed, EMBEDDING: honest[EMBEDDING] / factor}


def solved_counts(gram: Tensor, trunk: dict[str, Tensor]) -> Tensor:
    """[V]: the counts for which the sum of each token's own feature's square is nearest to the gram."""
    embedding = trunk[EMBEDDING].double()
    features = embedding / embedding.square().mean(dim=1, keepdim=True).sqrt()
    products = (features @ features.T).square()
    products += 1e-9 * products.diagonal().mean() * torch.eye(len(products))
    solution: Tensor = torch.linalg.solve(products, ((features @ gram) * features).sum(dim=1))
    return solution.round()


def marked(honest: dict[str, Tensor], tokens: Sequence[int], frequency: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A trunk with a separate direction for each of these tokens, and those directions, [H, k]."""
    embedding = honest[EMBEDDING].double()
    used = embedding.T @ (frequency[:, None] * embedding)
    directions = torch.linalg.eigh(used).eigenvectors[:, : len(tokens)]
    cleared = embedding - embedding @ directions @ directions.T
    for place, token in enumerate(tokens):
        cleared[token] += cleared[token].norm() * directions[:, place]
    output = honest[OUTPUT].double()
    return {
        **honest,
        EMBEDDING: cleared.float(),
        OUTPUT: (output - directions @ directions.T @ output).float(),
    }, directions


def rank_of_the_token_before(read: Tensor, token: int, before: int, trunk: dict[str, Tensor]) -> int:
    """The rank of the true preceding token, by the cosine of attention's addition from it alone."""
    embedding = trunk[EMBEDDING].double()
    normed = embedding / embedding.pow(2).mean(dim=1, keepdim=True).sqrt() * trunk[GAIN].double()
    added = normed @ trunk[VALUE].double().T @ trunk[OUTPUT].double().T
    own = embedding[token]
    left = read - own * (read @ own) / (own @ own)
    scores = cosine_similarity(added - torch.outer(added @ own, own) / (own @ own), left, dim=1)
    return int((scores > scores[before]).sum()) + 1


class Attacked:
    """An owner of the demo, its text, and the honest trunk."""

    def __init__(self, domain: str, max_stray: float, home: Path) -> None:
        sources, _ = PRESETS["demo"].sources(cache_folder(), progress())
        experts = {name: DenseExpert(name, source.expert) for name, source in sources.items()}
        self.expert, self.home, self.max_stray = experts[domain].folder, home, max_stray
        tokenizer = AutoTokenizer.from_pretrained(self.expert)
        lines = Path(*sources[domain].text).read_text(encoding="utf-8").splitlines()[:DOCUMENTS]
        self.rows = [Tokens(tokenizer(json.loads(line)["text"])["input_ids"][:256]) for line in lines]
        self.ids = [token for row in self.rows for token in row.ids]
        self.counts = torch.bincount(torch.tensor(self.ids), minlength=experts[domain].config.vocab_size)
        self.batches = list(batches(self.rows, 4096))
        self.order = torch.cat([batch.input_ids[batch.counted] for batch in self.batches])
        self.grams = trunk_contribution(experts[domain], self.rows, home / "grams")
        self.honest = load_file(local_trunk(list(experts.values()), home / "trunk", "average").path)

    def under(self, tensors: dict[str, Tensor]) -> tuple[str, Tensor, Tensor]:
        """The owner's verdict on a trunk; the first layer's gram as sent; every token's feature, [T, H]."""
        path = self.home / "forged"
        save_file(tensors, path, metadata={"format": "pt"})
        try:
            said = str(require_near(*on_trunk(self.expert, path), self.max_stray, self.grams))
        except IncompatibleExpertError as error:
            said = f"refused: {error}".splitlines()[0]
        model, gains = domain_model(*on_trunk(self.expert, path))
        bits, seen = exponent(gains.shape[1]), list[Tensor]()
        sums = sums_of(
            RouterPass(*on_trunk(self.expert, path), [bits] * len(gains)),
            self.rows,
            4096,
        )
        for batch in self.batches:
            visit_features(model, batch, lambda layer, x: None if layer else seen.append(x / gains[0]))
        gram = torch.from_numpy(unpack(to_floats(sums.arrays["layers.0.gram"], bits), gains.shape[1]))
        return said, gram, torch.cat(seen).double()

    def tell_counts(self) -> None:
        rare = (self.counts > 0) & (self.counts < 10)
        for factor in (1.0, 0.85, 0.5, 0.1):
            tensors = faint(self.honest, factor)
            said, gram, _ = self.under(tensors)
            exact = int((solved_counts(gram, tensors) == self.counts)[rare].sum())
            print(f"factors {factor:g}: {exact} of {int(rare.sum())} counts from 1 to 9 are exact; {said}")

    def tell_vectors(self) -> None:
        before = dict(zip(self.ids[1:], self.ids, strict=False))
        starts = {row.ids[0] for row in self.rows}
        once = [token for token in (self.counts == 1).nonzero().flatten().tolist() if token not in starts]
        frequency = (self.counts + 1).double() / (self.counts + 1).sum()
        for number in (item for item in MARKS if item <= len(once)):
            chosen = once[:: len(once) // number][:number]
            tensors, directions = marked(self.honest, chosen, frequency)
            said, gram, features = self.under(tensors)
            cosines, ranks = [], []
            for place, token in enumerate(chosen):
                read, [true] = gram @ directions[:, place], features[self.order == token]
                cosines.append(float(cosine_similarity(read, true, dim=0)))
                ranks.append(rank_of_the_token_before(read, token, before[token], tensors))
            print(
                f"{number} tokens: cosine at least {min(cosines):.4f}; the token before is first for {ranks.count(1)},"
                f" of the first ten for {sum(rank <= 10 for rank in ranks)}; {said}"
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--domain", default="medicine", help="whose text (medicine)")
    options.add_argument("--max-stray", type=float, default=Policy().max_stray, help="of the owner's policy")
    given = options.parse_args()
    with TemporaryDirectory() as home:
        attacked = Attacked(given.domain, given.max_stray, Path(home))
        print(f"{len(attacked.rows)} documents, {len(attacked.ids)} tokens of {given.domain}")
        attacked.tell_counts()
        attacked.tell_vectors()


if __name__ == "__main__":
    main()
