"""Models in memory become ours: the same numbers, and no second copy where none is needed; or a line says why not."""

import copy
import json

import pytest
import torch
from families import variant
from parity import transformers
from tiny import GPT2 as OUR_GPT2
from tiny import randomise, token_ids
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from torch.testing import assert_close

from interp import InputError, Tokenizer, Transformer, TransformerConfig, run
from interp.config import LayerNorm, Plain, StackConfig
from models import Wrapped, copy_weights, load, save, wrap
from models.families import by_head, columns

FAMILIES = ("gpt2", "llama", "bert")
COPIED = {"gpt2": set(), "llama": {"attn.qkv.weight", "mlp.up.weight"}, "bert": {"attn.qkv.weight", "attn.qkv.bias"}}
IDS = token_ids(3, 11, d_vocab=23)


def build(family: str, dtype: torch.dtype = torch.float32, **changes: object):
    return variant(family, **changes).build(dtype).eval()


# --- models of transformers


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_shared_and_what_was_copied_is_told(family):
    wrapped = wrap(build(family))
    own = wrapped.shares
    assert {share.parameter.partition(".blocks.")[2][2:] for share in own.parameters if not share.shared} == COPIED[
        family
    ]
    sizes = {name: weight.nbytes for name, weight in wrapped.named_parameters()}
    copied = sum(size for name, size in sizes.items() if name[len("stacks.decoder.blocks.0.") :] in COPIED[family])
    assert (own.copied_bytes, own.shared_bytes) == (copied, sum(sizes.values()) - copied)
    assert own.copied == copied / sum(sizes.values())
    first, *rest = repr(own).splitlines()
    assert f"({own.copied:.1%})" in first
    assert len(rest) == bool(COPIED[family])
    table = own.table().set_index("parameter")
    assert table.loc[[*sizes], "bytes"].tolist() == [*sizes.values()]
    stack = next(iter(wrapped.config.stacks))
    assert (
        table.loc[f"stacks.{stack}.blocks.1.attn.qkv.weight", "made_of"]
        == {
            "gpt2": "h.1.attn.c_attn.weight",
            "llama": ", ".join(f"layers.1.self_attn.{part}_proj.weight" for part in "qkv"),
            "bert": ", ".join(f"encoder.layer.1.attention.self.{part}.weight" for part in ("query", "key", "value")),
        }[family]
    )


def test_a_view_of_a_head_here_edits_their_model():
    theirs = build("gpt2")
    wrapped = wrap(theirs)
    with torch.no_grad():
        wrapped.last.blocks[1].attn.W_V[2].zero_()
        changed = theirs(IDS).logits
    value = theirs.transformer.h[1].attn.c_attn.weight[:, -7:]
    assert torch.equal(value, torch.zeros(21, 7))
    assert_close(run(wrapped, IDS).logits, changed, atol=1e-4, rtol=1e-5)


def test_a_copy_is_untouched_and_can_be_filled_again():
    theirs = build("llama")
    copied = wrap(theirs, copy=True)
    assert copied.shares.copied == 1
    before = run(copied, IDS).logits
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.mul_(1.5)
    assert torch.equal(run(copied, IDS).logits, before)
    half = wrap(theirs)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.mul_(1.5)
    expected = run(wrap(theirs, copy=True), IDS).logits
    assert not torch.equal(run(half, IDS).logits, expected)
    for model in (copied, half):  # of which one shares what it is filled from
        copy_weights(model, theirs)
        assert_close(run(model, IDS).logits, expected, atol=1e-6 * float(expected.abs().max()), rtol=0)


def test_wrapping_draws_nothing_and_leaves_their_model_alone():
    theirs = build("bert").train()
    theirs.requires_grad_(False)
    state, before = torch.get_rng_state(), copy.deepcopy(theirs.state_dict())
    wrapped = wrap(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(dict(theirs.state_dict()), dict(before), atol=0, rtol=0)
    assert theirs.training
    assert not wrapped.training
    assert not any(weight.requires_grad for weight in theirs.parameters())
    assert all(weight.requires_grad and weight.is_leaf for weight in wrapped.parameters())
    run(wrapped, IDS, grad=True).logits.sum().backward()
    assert all(weight.grad is None for weight in theirs.parameters())


@pytest.mark.parametrize("given", ["config", "dict"])
def test_tensors_with_a_config_are_the_model(given):
    theirs = build("llama")
    config = theirs.config if given == "config" else json.loads(theirs.config.to_json_string())
    wrapped = wrap(theirs.state_dict(), config=config)
    assert torch.equal(run(wrapped, IDS).logits, run(wrap(theirs), IDS).logits)
    assert wrapped.shares.shared_bytes > 0


def test_a_tensor_of_another_dtype_is_copied_and_the_reason_given():
    theirs = build("gpt2", dtype=torch.bfloat16)
    theirs.transformer.ln_f.float()
    wrapped = wrap(theirs)
    assert {weight.dtype for weight in wrapped.parameters()} == {torch.bfloat16}
    assert [share.parameter for share in wrapped.shares.parameters if not share.shared] == [
        "stacks.decoder.norm.weight",
        "stacks.decoder.norm.bias",
    ]
    assert "as the others are bfloat16: stacks.decoder.norm.bias, stacks.decoder.norm.weight" in repr(wrapped.shares)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, of what it imports for this
@pytest.mark.slow
def test_what_torch_compile_has_wrapped_is_the_same_model():
    theirs = build("gpt2")
    assert torch.equal(run(wrap(torch.compile(theirs)), IDS).logits, run(wrap(theirs), IDS).logits)


def test_a_wrapped_model_is_saved_as_its_family_and_is_a_transformer(tmp_path):
    wrapped = wrap(build("llama"))
    assert isinstance(wrapped, Wrapped)
    assert isinstance(wrapped, Transformer)
    save(wrapped, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.family == "llama"
    for name, weight in again.named_parameters():
        assert torch.equal(weight, wrapped.get_parameter(name))


def words() -> Backend:
    backend = Backend(WordLevel({f"w{number}": number for number in range(23)}, "w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    return backend


def test_a_tokenizer_of_transformers_or_ours_reads_text():
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), bos_token="w1")
    for tokenizer in (theirs, Tokenizer(words())):
        out = run(wrap(build("gpt2"), tokenizer=tokenizer), "w5 w7")
        assert out.tokens.ids.tolist() == [[5, 7]]
    assert wrap(build("gpt2")).tokenizer is None


# --- anyone's own module


D, HEADS, INNER, LENGTH, VOCAB, LAYERS = 20, 4, 27, 13, 23, 2


class Mine(nn.Module):
    """A small GPT, written from memory: a matrix each for q, k and v, one of them input first, and a mask."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(LENGTH, D)
        self.layers = nn.ModuleList(MyLayer() for _ in range(LAYERS))
        self.final = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x))


class MyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.fc = nn.Linear(D, INNER)
        self.back = nn.Linear(INNER, D)
        self.register_buffer("seen", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):
        a = self.n1(x)
        q, k, v = (each(a).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        n = x.shape[1]
        scores = (q @ k.mT / (D / HEADS) ** 0.5).masked_fill(~self.seen[:n, :n], -torch.inf)
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.back(self.fc(self.n2(x)).relu())


CONFIG = TransformerConfig(
    decoder=StackConfig(
        n_layers=LAYERS,
        d_model=D,
        n_heads=HEADS,
        d_head=D // HEADS,
        d_mlp=INNER,
        n_ctx=LENGTH,
        d_vocab=VOCAB,
        causal=True,
        norm=LayerNorm(),
        mlp=Plain("relu"),
        attention_bias=False,
    ),
    output="untied",
)
BLOCK = "stacks.decoder.blocks.*"
NAMES = {
    "stacks.decoder.embed.token": "tok",
    "stacks.decoder.embed.position": "pos",
    f"{BLOCK}.norm_attn": "layers.*.n1",
    f"{BLOCK}.attn.qkv": ("layers.*.q", "layers.*.k", "layers.*.v"),
    f"{BLOCK}.attn.out": "layers.*.o",
    f"{BLOCK}.norm_mlp": "layers.*.n2",
    f"{BLOCK}.mlp.up": "layers.*.fc",
    f"{BLOCK}.mlp.down": "layers.*.back",
    "stacks.decoder.norm": "final",
    "output": "head",
}


def mine() -> Mine:
    module = Mine().eval()
    randomise(module)
    return module


def test_a_module_of_ones_own_with_a_table_of_names():
    module = mine()
    wrapped = wrap(module, config=CONFIG, names=NAMES)
    with torch.no_grad():
        assert_close(run(wrapped, IDS).logits, module(IDS), atol=1e-4, rtol=1e-5)
    assert wrapped.shares.passed_over == ("layers.0.seen", "layers.1.seen")
    assert "buffers: layers.0-1.seen" in repr(wrapped.shares)
    assert {each.parameter for each in wrapped.shares.parameters if not each.shared} == {
        f"stacks.decoder.blocks.{layer}.attn.qkv.weight" for layer in range(LAYERS)
    }


def test_a_tied_module_may_name_its_output_layer_or_not():
    module = mine()
    module.head.weight = module.tok.weight
    tied = TransformerConfig(decoder=CONFIG.decoder, output="tied")
    for names in (NAMES, {ours: theirs for ours, theirs in NAMES.items() if ours != "output"}):
        given = module if "output" in names else dict(module.named_parameters())
        with torch.no_grad():
            assert_close(run(wrap(given, config=tied, names=names), IDS).logits, module(IDS), atol=1e-4, rtol=1e-5)


def test_matrices_that_lie_otherwise():
    module = mine()
    expected, tensors = run(wrap(module, config=CONFIG, names=NAMES), IDS).logits, dict(module.named_parameters())
    names = dict(NAMES)
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.fc.weight"] = tensors[f"layers.{layer}.fc.weight"].detach().T.contiguous()
        parts = [tensors.pop(f"layers.{layer}.{part}.weight").detach() for part in "qkv"]
        stacked = torch.stack([part.unflatten(0, (HEADS, -1)) for part in parts], 1)
        tensors[f"layers.{layer}.qkv.weight"] = stacked.flatten(0, 2)
    names |= {f"{BLOCK}.mlp.up": columns("layers.*.fc"), f"{BLOCK}.attn.qkv": by_head("layers.*.qkv")}
    wrapped = wrap(tensors, config=CONFIG, names=names)
    assert_close(run(wrapped, IDS).logits, expected, atol=1e-5, rtol=1e-5)
    why = {each.parameter: each.why_copied for each in wrapped.shares.parameters}
    assert why["stacks.decoder.blocks.0.mlp.up.weight"] == ""
    assert why["stacks.decoder.blocks.0.attn.qkv.weight"] == "as they lie head by head there"


def test_weights_under_our_own_names():
    made = Transformer(TransformerConfig(decoder=OUR_GPT2))
    randomise(made)
    wrapped = wrap(made.state_dict(), config=made.config)
    assert wrapped.shares.copied == 0
    ids = token_ids(2, 7)
    assert torch.equal(run(wrapped, ids).logits, run(made, ids).logits)
    other = Transformer(made.config)
    copy_weights(other, made.state_dict())
    assert torch.equal(run(other, ids).logits, run(made, ids).logits)


def test_copy_weights_fills_a_model_from_a_module():
    module, model = mine(), Transformer(CONFIG)
    copy_weights(model, module, NAMES)
    with torch.no_grad():
        assert_close(run(model, IDS).logits, module(IDS), atol=1e-4, rtol=1e-5)


# --- bad input: each one line


def refusal(call, *given: object, **settings: object) -> str:
    with pytest.raises(InputError) as caught:
        call(*given, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert "config.json" not in message  # there is none
    return message


def test_weights_that_do_not_fit_are_named_and_nothing_is_copied():
    module, model = mine(), Transformer(CONFIG)
    tensors = dict(module.named_parameters())
    tensors["layers.1.extra"] = torch.ones(2)
    for layer in range(LAYERS):
        del tensors[f"layers.{layer}.k.weight"]
    tensors["final.bias"] = torch.ones(3)
    tensors["pos.weight"] = torch.ones(LENGTH, D, dtype=torch.int64)
    before = copy.deepcopy(model.state_dict())
    for call in (
        lambda: wrap(tensors, config=CONFIG, names=NAMES),
        lambda: copy_weights(model, tensors, NAMES),
    ):
        assert set(refusal(call).removeprefix("these tensors: ").split("; ")) == {
            "the weights lack layers.0-1.k.weight, which the config asks for",
            "the weights hold layers.1.extra, which the config has no place for",
            "final.bias has shape (3,), but the config asks for (20,)",
            "pos.weight is stored as torch.int64",
            "expected F64, F32, F16, BF16",
        }
    assert_close(dict(model.state_dict()), dict(before), atol=0, rtol=0)


def test_a_table_that_lacks_a_name_or_has_one_too_many():
    names = {ours: theirs for ours, theirs in NAMES.items() if not ours.endswith(("norm", "qkv"))}
    message = refusal(wrap, mine(), config=CONFIG, names=names | {f"{BLOCK}.mlp.gate": "layers.*.fc"})
    assert message == (
        "Mine: names lacks stacks.decoder.blocks.*.attn.qkv.weight, stacks.decoder.norm.bias, "
        "stacks.decoder.norm.weight, which the config asks for; names speaks of stacks.decoder.blocks.*.mlp.gate, "
        "which the config has no place for"
    )


def test_by_head_is_for_one_matrix_of_equal_parts():
    for part in ("attn.out", "mlp.up"):
        names = NAMES | {f"{BLOCK}.{part}": by_head("layers.*.fc")}
        assert "by_head is for" in refusal(wrap, mine(), config=CONFIG, names=names)


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        (lambda: "gpt2", {}, "models.load opens a directory or a name"),
        (lambda: Transformer(CONFIG), {}, "one of ours already"),
        (mine, {}, "got none"),
        (lambda: {"a": 1}, {"config": CONFIG}, "a is a int: expected plain tensors"),
        (dict, {"config": {}}, "lacks 'model_type'"),
        (dict, {"config": 3}, "got int"),
        (mine, {"config": {"model_type": "falcon"}}, "models.lens.wrap takes as a bridge"),
        (mine, {"config": {"model_type": "gpt2"}}, "the config lacks 'n_embd'"),
        (lambda: build("gpt2"), {"names": NAMES}, "goes with config=TransformerConfig"),
        (lambda: build("gpt2"), {"tokenizer": 3}, "tokenizer: expected a Tokenizer or a fast tokenizer"),
        (lambda: build("gpt2").to("meta"), {}, "no numbers"),
        (lambda: build("gpt2", reorder_and_upcast_attn=True), {}, "reorder_and_upcast_attn True is not supported"),
        (lambda: build("llama", model="LlamaModel"), {}, "wrap the LlamaForCausalLM"),
        (lambda: build("gpt2", model="GPT2ForSequenceClassification"), {}, "the weights hold score.weight"),
    ],
)
def test_what_cannot_be_wrapped(given, settings, expected):
    assert expected in refusal(wrap, given(), **settings)


def test_a_tokenizer_of_another_model():
    backend = words()
    backend.add_tokens(["more"])
    assert "tokenizer gives ids up to 23, but the embedding has 23 rows" in refusal(
        wrap, build("gpt2"), tokenizer=Tokenizer(backend)
    )


def test_tensors_that_the_config_says_are_one():
    tensors = build("gpt2").state_dict()
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"] + 1
    message = refusal(wrap, tensors, config=build("gpt2").config)
    assert message == "these tensors: the config says that lm_head.weight and wte.weight are one, but they differ"
