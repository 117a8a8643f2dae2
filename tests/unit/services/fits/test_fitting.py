"""An owner's MLPs, fitted to a body: behind it they do what they did in the expert."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from moerge.documents.pool import pool_texts
from moerge.errors import IncompatibleExpertError
from moerge.fits.fitting import SHRINKAGE_TO_EXPERT, PublicText, fit
from moerge.models.batches import batches
from moerge.models.dense import domain_model, expert_model, mlp_names
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.models.stored import SINGLE
from moerge.models.tokens import Tokens, all_counted
from moerge_proto.statistics_file import StatisticsSettings
from support.fitting import whole_fit
from support.models import DISTINCT, HEAD_NAMES, expert, on_body, seed_model
from support.versions import body_file

DOCUMENTS = [[(5 * row + 3 * column * (1 + row % 3)) % 256 for column in range(20 + row)] for row in range(40)]
GATE, UP, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def fitted(folder: Path, body: Path) -> Checkpoint:
    return Checkpoint(fit(*on_body(folder, body), list(batches(all_counted(DOCUMENTS), 200)), body.parent / "fitted"))


def two(folder: Path, family: str = "llama", **settings: object) -> tuple[Path, Path]:
    """An expert, and the average body of it and another."""
    given = {"tie_word_embeddings": False, **settings}
    experts = [expert(folder / str(seed), seed=seed, family=family, **given) for seed in (1, 2)]
    return experts[0], body_file(experts, folder / "body")


@torch.inference_mode()
def reads(model: nn.Module, module: str) -> Tensor:
    """[n, in] float64: what a module reads of the documents, one by one."""
    seen: list[Tensor] = []
    handle = model.get_submodule(module).register_forward_pre_hook(lambda _, given: seen.append(given[0][0].double()))
    for document in DOCUMENTS:
        model(torch.tensor([document]), use_cache=False)
    handle.remove()
    return torch.cat(seen)


def drawn_fit(inputs: Tensor, wanted: Tensor, own: Tensor) -> Tensor:
    """The textbook's ridge towards `own`."""
    shrinkage = (SHRINKAGE_TO_EXPERT * inputs.shape[1] / len(inputs) * inputs.pow(2).sum(dim=0).mean()) ** 0.5
    left = torch.cat([inputs, shrinkage * torch.eye(inputs.shape[1], dtype=torch.float64)])
    right = torch.cat([wanted, shrinkage * own.double().T])
    solution: Tensor = torch.linalg.lstsq(left, right).solution
    return solution.T


def some_counted() -> list[Tokens]:
    """The documents; in every second one, a seventh of the tokens doesn't count."""
    marks = [[place % 7 != 3 or number % 2 == 0 for place in range(len(item))] for number, item in enumerate(DOCUMENTS)]
    return list(map(Tokens, DOCUMENTS, marks))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 8}),
        ("phi3", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("qwen3", {}),
    ],
)
def test_it_is_byte_for_byte_the_fit_with_both_models_in_memory(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    folder, body = two(tmp_path, family, **settings)
    cut = list(batches(some_counted(), 200))
    result, expected = (
        Checkpoint(fit(*on_body(folder, body), cut, tmp_path / "fitted")),
        whole_fit(folder, body, cut),
    )
    assert len(expected) == 3 * len(FAMILIES[family].mlp)
    for name, tensor in expected.items():
        assert torch.equal(result.tensor(name), tensor), name


def public_text(folder: Path, intermediate_size: int = 48) -> PublicText:
    """Another model, in the place of the seed, and other rows."""
    rows = all_counted([[(7 * row + column * column) % 256 for column in range(15 + row)] for row in range(20)])
    seed = expert(folder / "seed", seed=3, tie_word_embeddings=False, intermediate_size=intermediate_size)
    return PublicText(DenseFiles(seed), list(batches(rows, 100)))


def test_with_public_text_it_is_byte_for_byte_the_fit_with_all_models_in_memory(tmp_path: Path) -> None:
    folder, body = two(tmp_path)
    cut, public = list(batches(some_counted(), 200)), public_text(tmp_path)
    result = Checkpoint(fit(*on_body(folder, body), cut, tmp_path / "fitted", public=public))
    for name, tensor in whole_fit(folder, body, cut, public).items():
        assert torch.equal(result.tensor(name), tensor), name
    alone = Checkpoint(fit(*on_body(folder, body), cut, tmp_path / "alone"))
    assert not torch.equal(result.tensor(DOWN), alone.tensor(DOWN))


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same_bytes(tmp_path: Path, threads: int) -> None:
    """Grams of the last matrices are summed in two blocks."""
    folder, body = two(tmp_path, intermediate_size=300)
    given, public = (*on_body(folder, body), list(batches(some_counted(), 200))), public_text(tmp_path, 300)
    one, other = (
        fit(*given, tmp_path / f"on-{number}", public=public, threads=number) / SINGLE for number in (1, threads)
    )
    assert other.read_bytes() == one.read_bytes()
    for name, tensor in whole_fit(folder, body, given[-1], public).items():
        torch.testing.assert_close(Checkpoint(one.parent).tensor(name), tensor, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_public_text_keeps_the_seed_s_answers_to_it(tmp_path: Path) -> None:
    """Text from the pool: of the library, by the seed's tokenizer."""
    seed, own = seed_model(tmp_path / "seed"), expert(tmp_path / "own", seed=1)
    public = PublicText.of(DenseFiles(seed), StatisticsSettings(batch_tokens=512, context=256))
    assert sum(len(batch.lengths) for batch in public.batches) == len(pool_texts())
    body, cut = body_file([seed], tmp_path / "body"), list(batches(all_counted(DOCUMENTS), 200))
    kept = fit(*on_body(own, body), cut, tmp_path / "kept", public=public)
    alone = fit(*on_body(own, body), cut, tmp_path / "alone")
    text = public.batches[0].input_ids[:1]
    models = expert_model(DenseFiles(seed)), behind(own, alone, body), behind(own, kept, body)
    answers, far, near = (model.get_submodule("model")(text).last_hidden_state for model in models)
    assert float((near - answers).norm()) < 0.95 * float((far - answers).norm())


def test_interrupted_fit_resumes_at_the_interrupted_layer(tmp_path: Path) -> None:
    folder, body = two(tmp_path)
    cut, solved = list(batches(all_counted(DOCUMENTS), 200)), list[int]()
    whole = fit(*on_body(folder, body), cut, tmp_path / "whole") / "model.safetensors"
    tokens = sum(map(len, DOCUMENTS))

    def until(most: int) -> Callable[[int], None]:
        def done(tokens: int) -> None:
            solved.append(tokens)
            if sum(solved) > most:
                raise KeyboardInterrupt

        return done

    def begun() -> list[str]:
        return sorted(path.name for path in (tmp_path / "fitted").iterdir())

    with pytest.raises(KeyboardInterrupt):
        fit(*on_body(folder, body), cut, tmp_path / "fitted", done=until(2 * tokens))
    assert begun() == ["fitted-0.part", "fitted-1.part"]
    first = (tmp_path / "fitted" / "fitted-1.part").stat().st_mtime_ns
    solved.clear()
    with pytest.raises(KeyboardInterrupt):
        fit(*on_body(folder, body), cut, tmp_path / "fitted", done=until(2 * tokens), threads=2)
    assert solved[:2] == [tokens, tokens]  # two layers are only passed
    assert (tmp_path / "fitted" / "fitted-1.part").stat().st_mtime_ns == first
    with pytest.raises(KeyboardInterrupt):  # of other text, nothing is used
        fit(*on_body(folder, body), cut[1:], tmp_path / "fitted", done=until(0))
    result = fit(*on_body(folder, body), cut, tmp_path / "fitted") / "model.safetensors"
    assert result.read_bytes() == whole.read_bytes()
    assert begun() == sorted(path.name for path in folder.iterdir())


def test_it_runs_on_one_thread_and_leaves_as_many_as_there_were(tmp_path: Path) -> None:
    folder, body = two(tmp_path)
    threads, cut = list[int](), list(batches(all_counted(DOCUMENTS[:3]), 200))
    torch.set_num_threads(2)
    try:
        fit(
            *on_body(folder, body),
            cut,
            tmp_path / "fitted",
            done=lambda tokens: threads.append(torch.get_num_threads()),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}


def test_the_first_layer_is_the_textbook_s_fit(tmp_path: Path) -> None:
    folder, body = two(tmp_path)
    own, behind = (
        expert_model(DenseFiles(folder)),
        domain_model(*on_body(folder, body))[0],
    )
    result = fitted(folder, body)
    mlp, norm = "model.layers.0.mlp", "model.layers.0.post_attention_layernorm"
    old, new = reads(own, mlp), reads(behind, mlp)
    for name in (GATE, UP):
        weight = Checkpoint(folder).tensor(name)
        expected = drawn_fit(new, old @ weight.double().T, weight)
        torch.testing.assert_close(result.tensor(name).double(), expected, rtol=0, atol=1e-4 * float(expected.std()))
    hidden = nn.functional.silu(new @ result.tensor(GATE).double().T) * (new @ result.tensor(UP).double().T)
    missing = reads(own, "model.layers.1.input_layernorm") - reads(behind, norm)
    expected = drawn_fit(hidden, missing, Checkpoint(folder).tensor(DOWN))
    torch.testing.assert_close(result.tensor(DOWN).double(), expected, rtol=0, atol=1e-3 * float(expected.std()))


@torch.inference_mode()
def divergence(one: nn.Module, other: nn.Module) -> float:
    """KL divergence of the next token's probabilities, in nats, averaged over the documents."""
    total, tokens = 0.0, 0
    for document in DOCUMENTS:
        left, right = (model(torch.tensor([document])).logits[0].log_softmax(dim=-1) for model in (one, other))
        total += float((left.exp() * (left - right)).sum())
        tokens += len(document)
    return total / tokens


def behind(folder: Path, parts: Path, body: Path) -> nn.Module:
    """The body with an expert's parts."""
    return domain_model(DenseFiles(parts), DenseBody(body, DenseFiles(folder).config))[0]


FITTABLE = [name for name in DISTINCT if FAMILIES[name].is_fittable]


@pytest.mark.parametrize("family", FITTABLE)
def test_fitted_mlps_reduce_divergence_from_the_expert(tmp_path: Path, family: str) -> None:
    folder, body = two(tmp_path, family)
    target = fit(*on_body(folder, body), list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "fitted")
    after = behind(folder, target, body)
    own, before = (
        expert_model(DenseFiles(folder)),
        domain_model(*on_body(folder, body))[0],
    )
    assert divergence(own, after) < 0.9 * divergence(own, before)


@pytest.mark.parametrize("family", FITTABLE)
def test_behind_the_expert_s_own_body_nothing_changes(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family)
    body = body_file([folder], tmp_path / "body")
    fit(*on_body(folder, body), list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "fitted")
    assert divergence(expert_model(DenseFiles(folder)), behind(folder, tmp_path / "fitted", body)) < 1e-6


@torch.inference_mode()
def test_a_fit_depends_on_no_head(tmp_path: Path) -> None:
    """Neither the expert's nor the body's: in the last layer, too, the target is the expert's own residual."""
    folder, body = two(tmp_path)
    one = fitted(folder, body)
    tensors = load_file(folder / SINGLE)
    for name in HEAD_NAMES:
        tensors[name] = torch.randn(tensors[name].shape)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    save_file(tensors, other / SINGLE)
    same = Checkpoint(fit(*on_body(other, body), list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "of-other"))
    for name in mlp_names(DenseFiles(folder)):
        assert torch.equal(one.tensor(name), same.tensor(name)), name
    models = domain_model(*on_body(folder, body))[0], expert_model(DenseFiles(folder)), behind(folder, one.path, body)
    before, target, residual = (reads(model, "model.norm") for model in models)
    assert (residual - target).pow(2).mean() < 0.8 * (before - target).pow(2).mean()


def test_a_family_that_normalises_its_mlps_outputs_is_refused(tmp_path: Path) -> None:
    folder, body = two(tmp_path, "olmo2")
    with pytest.raises(IncompatibleExpertError, match="olmo2 normalises the outputs of its MLPs"):
        fitted(folder, body)
