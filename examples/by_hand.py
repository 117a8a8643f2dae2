"""DUME (arXiv 2603.29765) in one file, for Llama experts: PyTorch and transformers alone, no moerge.

    python examples/by_hand.py --expert code=code/ --text code=code.jsonl --expert law=law/ --text law=law.jsonl \\
        --out merged

Experts are folders of fine-tuned copies of one seed model. A text is a file of JSON lines with the field `text`. The
output is a Mixtral checkpoint with one expert per domain. `moerge merge --recipe dume` makes the same model; it also
reads other families and models larger than the memory, and it has better recipes.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

Sums = dict[int, Tensor]
"""Layer -> a sum over tokens."""


def pieces(file: Path, tokenizer: Any, context: int) -> Iterator[Tensor]:
    """Documents as token ids [1, T], in pieces of at most `context` tokens."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            ids = torch.tensor(tokenizer(json.loads(line)["text"])["input_ids"])
            yield from ids[None].split(context, dim=1)


def average(experts: dict[str, LlamaForCausalLM]) -> dict[str, Tensor]:
    """Body and head: the mean of every tensor that belongs to no MLP (DUME algorithm 1)."""
    states = [expert.state_dict() for expert in experts.values()]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).float()
        for name in states[0]
        if ".mlp." not in name
    }


@torch.no_grad()
def statistics(model: LlamaForCausalLM, texts: Iterator[Tensor]) -> tuple[Sums, Sums]:
    """One domain's sums by layer over the MLP's inputs x: of x x^T, [H, H], and of x, [H] (DUME equations 5, 7)."""
    size = model.config.hidden_size
    grams, crosses = ({layer: torch.zeros(*shape).double() for layer in range(len(model.model.layers))}
                      for shape in ((size, size), (size,)))  # fmt: skip

    def add(layer: int) -> Any:
        def hook(mlp: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0][0].double()
            grams[layer] += x.T @ x
            crosses[layer] += x.sum(dim=0)

        return hook

    hooks = [layer.mlp.register_forward_pre_hook(add(number)) for number, layer in enumerate(model.model.layers)]
    for ids in texts:
        model.model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return grams, crosses


def solve(grams: list[Tensor], crosses: list[Tensor], ridge: float) -> Tensor:
    """A layer's router [D, H]: ridge regression on one-hot domains, each column to norm 1 (DUME equations 2, 7).

    Domain d's sum of x is column d of X^T Y, so the sums of all domains are all that the solution needs.
    """
    gram = torch.stack(grams).sum(dim=0)
    gram += ridge * torch.eye(len(gram)).double()
    columns = torch.cholesky_solve(torch.stack(crosses, dim=1), torch.linalg.cholesky(gram))
    router: Tensor = (columns / columns.norm(dim=0)).T.float()
    return router


def mixture(
    experts: dict[str, LlamaForCausalLM], common: dict[str, Tensor], routers: list[Tensor]
) -> MixtralForCausalLM:
    """The experts' MLPs and the routers in the common tensors, with one expert per token."""
    dense = next(iter(experts.values())).config
    shared = {name: value for name, value in dense.to_dict().items() if name in MixtralConfig().to_dict()}
    for name in ("architectures", "model_type", "transformers_version"):
        shared.pop(name, None)
    config = MixtralConfig(**shared, num_local_experts=len(experts), num_experts_per_tok=1)
    state = dict(common)
    for layer, router in enumerate(routers):
        mlps = [expert.model.layers[layer].mlp for expert in experts.values()]
        name = f"model.layers.{layer}.mlp"
        state[f"{name}.gate.weight"] = router
        ups = [torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) for mlp in mlps]
        state[f"{name}.experts.gate_up_proj"] = torch.stack(ups)
        state[f"{name}.experts.down_proj"] = torch.stack([mlp.down_proj.weight for mlp in mlps])
    model = MixtralForCausalLM(config)
    model.load_state_dict(state)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--text", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ridge", type=float, default=0.01, help="lambda of equation 2")
    parser.add_argument("--context", type=int, default=512)
    given = parser.parse_args()
    folders, files = (dict(item.split("=", 1) for item in items) for items in (given.expert, given.text))
    if folders.keys() != files.keys():
        parser.error(f"experts {', '.join(folders)}, but texts {', '.join(files)}: name the same domains")

    experts = {name: LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32) for name, folder in folders.items()}
    tokenizer = AutoTokenizer.from_pretrained(next(iter(folders.values())))
    common, sums = average(experts), []
    for name, expert in experts.items():
        own = {key: value for key, value in expert.state_dict().items() if ".mlp." in key}
        dense = LlamaForCausalLM(expert.config).eval()
        dense.load_state_dict({**common, **own})
        sums.append(statistics(dense, pieces(Path(files[name]), tokenizer, given.context)))
        print(f"{name}: statistics of {len(sums[-1][0])} layers")
    routers = [
        solve([grams[layer] for grams, _ in sums], [crosses[layer] for _, crosses in sums], given.ridge)
        for layer in range(len(sums[0][0]))
    ]
    model = mixture(experts, common, routers)
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    print(f"{given.out}: {len(experts)} experts, {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
