"""The original transformer is the paper's; our own format can express every configuration of ours."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal
from tiny import STACKS, model, randomise, token_ids
from torch.testing import assert_close

from interp import Transformer, TransformerConfig, generate, run
from interp.config import Experts, Gated, Interpolated, LayerNorm, Local, Plain, Rotary, Sinusoidal, Transform, Writing
from models import load, recipes, save
from models.families.fields import Fields
from models.families.interp_format import config as read_config
from models.families.interp_format import raw
from models.families.original import original
from models.initialisation import initialise
from models.recipes.origins import Fresh


def tiny_original() -> Transformer:
    settings = {"n_layers": 2, "d_model": 15, "n_heads": 3, "d_mlp": 23, "n_ctx": 13}
    built = Transformer(original(29, **settings, target_start=1, target_end=2)).double()
    randomise(built)
    return built


def test_the_default_is_the_base_model_of_the_paper():
    config = original()
    for stack in config.stacks.values():
        assert (stack.n_layers, stack.n_heads, stack.d_model, stack.d_head, stack.d_mlp) == (6, 8, 512, 64, 2048)
        assert stack.embedding_scale == 512**0.5
        assert (stack.positions, stack.wiring, stack.mlp) == (Sinusoidal(), "post", Plain("relu"))
        assert (stack.attention_bias, bool(stack.out_bias), stack.embedding_norm) == (False, False, False)
    assert (config.output, config.shared_embedding) == ("tied", True)


@pytest.mark.parametrize(("settings", "millions"), [({}, 65), ({"d_model": 1024, "n_heads": 16, "d_mlp": 4096}, 213)])
def test_it_has_as_many_parameters_as_table_3_says(settings, millions):
    with torch.device("meta"):
        built = Transformer(original(**settings))
    assert sum(weight.numel() for weight in built.parameters()) / 1e6 == pytest.approx(millions, rel=0.05)


def test_embeddings_are_scaled_and_told_positions_as_the_paper_says():
    built, ids = tiny_original(), token_ids(1, 3)
    embedded = run(built, ids, "encoder.embed", target=ids)["encoder.embed"][0]
    weight = built.stack("encoder").embed.token.weight[ids[0]] * 15**0.5
    position, dimension = torch.arange(3.0)[:, None], torch.arange(15)
    angle = position / 10_000 ** (2 * (dimension // 2) / 15)
    expected = weight + torch.where(dimension % 2 == 0, angle.sin(), angle.cos())
    assert_close(embedded, expected, atol=1e-6, rtol=1e-6)


def test_the_recipe_is_the_papers_model_and_its_training():
    recipe = recipes.read("original")
    sizes = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_mlp": 256, "n_ctx": 64}
    assert isinstance(recipe.origin, Fresh)
    assert recipe.origin.config({"encoder": 51, "decoder": 51}, 0, 1) == original(
        51, **sizes, target_start=0, target_end=1
    )
    plan = recipe.plan
    assert (plan.betas, plan.eps, plan.dropout, plan.label_smoothing) == ((0.9, 0.98), 1e-9, 0.1, 0.1)
    for step in (1, 17, plan.warmup, plan.warmup + 1, plan.steps):  # section 5.3, equation 3
        assert plan.rate(step - 1) == pytest.approx(64**-0.5 * min(step**-0.5, step * plan.warmup**-1.5))


def test_embeddings_drawn_for_it_are_as_large_as_the_sines():
    built = Transformer(original(997, n_layers=1, d_model=64, n_heads=4, d_mlp=128, n_ctx=50))
    initialise(built, 0, "glorot")
    scaled = built.stack("encoder").embed.token.weight * 64**0.5
    assert_close(scaled.std(), torch.tensor(1.0), atol=0.02, rtol=0)  # a sine's is 0.71
    up = next(weight for name, weight in built.named_parameters() if name.endswith("up.weight"))
    assert_close(up.std(), torch.tensor((2 / (64 + 128)) ** 0.5), atol=0, rtol=0.05)


# --- our own format

ELABORATE = TransformerConfig(
    decoder=replace(
        STACKS["llama"],
        positions=Rotary(scaling=Interpolated(2.0)),
        local=Local((1,), 4, Rotary(base=37.0)),
        mlp=Experts(3, 2, Gated("silu")),
        wiring="sandwich",
        qk_norm="head",
        score_cap=30.0,
    ),
    transform=Transform("gelu", LayerNorm(1e-3)),
    logit_cap=20.0,
    output="tied",
)
CONFIGS = {
    **{name: model(name).config for name in ("bert", "no positions", "attention only")},
    "original": tiny_original().config,
    "elaborate": ELABORATE,
    "writing": replace(tiny_original().config, writing=Writing((3, 4), 5, 6, (7,))),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_configuration_and_its_weights_survive_being_written(config, tmp_path):
    built = Transformer(config).double()
    randomise(built)
    save(built, tmp_path / "model", "interp")
    again = load(tmp_path / "model", dtype=torch.float64)
    assert again.config == config
    assert_close(again.state_dict(), built.state_dict(), atol=0, rtol=0)


def test_what_no_family_says_is_saved_in_our_own_format(tmp_path):
    save(tiny_original(), tmp_path / "model")
    again, ids = load(tmp_path / "model", dtype=torch.float64), token_ids(2, 5)
    assert again.family == "interp"
    assert torch.equal(generate(again, ids, 5).ids, generate(tiny_original(), ids, 5).ids)


def test_absent_fields_have_their_default():
    spelled = raw(tiny_original().config)
    assert spelled["transformer"]["encoder"].pop("n_token_types") == 0
    spelled["transformer"]["encoder"]["embedding_scale"] = 4
    assert read_config(Fields(spelled)).encoder == replace(tiny_original().config.encoder, embedding_scale=4.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("", None, "transformer must be an object with a"),
        ("", {"kind": "NoNorm"}, 'must be an object of kind "TransformerConfig"'),
        ("decoder.kind", "Nothing", "transformer.decoder must be"),
        ("decoder.n_layers", 2.0, "transformer.decoder.n_layers must be int, got 2.0"),
        ("decoder.wiring", "across", "transformer.decoder.wiring must be"),
        ("decoder.mystery", 1, "a StackConfig, has no mystery"),
        ("decoder.mlp", {"kind": "Plain"}, "a Plain, lacks activation"),
        ("decoder.n_layers", 0, "n_layers must be a number from 1 to"),
        ("writing.ends", ["2"], "transformer.writing.ends must be int"),
    ],
)
def test_what_is_no_configuration_is_named(path, value, message):
    content = raw(tiny_original().config)
    *way, last = ["transformer", *filter(None, path.split("."))]
    inner = content
    for step in way:
        inner = inner[step]
    inner[last] = value
    assert message in refusal(read_config, Fields(content))
