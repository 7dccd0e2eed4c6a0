"""Scores of the public package of Hanna et al. for a tiny GPT-2's edges. `benchmarks.eap` runs it in a separate
environment, which has neither `interp` nor its versions.

    python benchmarks/eap_package.py PACKAGE FOLDER

PACKAGE is the folder `eap`. FOLDER holds a model of `transformers`, `pairs.pt` (ids `clean` and `corrupt`, ids of
the answers `right` and `wrong`, and `steps`), and gets `scores.pt`: by method, sender x receiver.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def bridged(folder: Path) -> Any:
    """The model in TransformerLens 2, in double precision."""
    from transformers import GPT2LMHeadModel

    lens: Any = import_module("transformer_lens")
    conversions: Any = import_module("transformer_lens.pretrained.weight_conversions")
    theirs: Any = GPT2LMHeadModel.from_pretrained(folder).double()
    sizes = theirs.config
    config = lens.HookedTransformerConfig(
        n_layers=sizes.n_layer,
        d_model=sizes.n_embd,
        n_heads=sizes.n_head,
        d_head=sizes.n_embd // sizes.n_head,
        d_mlp=sizes.n_inner or 4 * sizes.n_embd,
        n_ctx=sizes.n_positions,
        d_vocab=sizes.vocab_size,
        act_fn="gelu_new",
        normalization_type="LN",
        dtype=torch.float64,
        use_attn_result=True,
        use_split_qkv_input=True,
        use_hook_mlp_in=True,
    )
    model = lens.HookedTransformer(config)
    model.load_state_dict(conversions.convert_gpt2_weights(theirs, config), strict=False)
    return model


def scores(package: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Mean scores over prompts by method, on the CPU, from ids instead of texts."""
    sys.path.insert(0, str(package.parent))
    sys.modules.setdefault("pygraphviz", ModuleType("pygraphviz"))  # only for drawing
    attribute: Any = import_module(f"{package.name}.attribute")
    zeros: Any = torch.zeros
    attribute.torch = SimpleNamespace(**vars(torch))  # the package allocates only on a GPU
    attribute.torch.zeros = lambda *sizes, **options: zeros(*sizes, **{**options, "device": "cpu"})
    attribute.tokenize_plus = lambda _, ids: (ids, ones := torch.ones_like(ids), ones.sum(1), ids.shape[1])
    model, pairs = bridged(folder), torch.load(folder / "pairs.pt")
    batch = [(pairs["clean"], pairs["corrupt"], (pairs["right"], pairs["wrong"]))]

    def difference(logits: torch.Tensor, _: object, lengths: torch.Tensor, answers: Any) -> torch.Tensor:
        rows = torch.arange(len(lengths))
        right, wrong = (logits[rows, lengths - 1, ids] for ids in answers)
        return (right - wrong).sum()  # the package divides by the number of prompts

    arguments = model, attribute.Graph.from_model(model), batch, difference
    return {
        "EAP": attribute.get_scores_eap(*arguments, quiet=True),
        "EAP-IG (inputs)": attribute.get_scores_eap_ig(*arguments, steps=pairs["steps"], quiet=True),
        "EAP-IG (activations)": attribute.get_scores_ig_activations(*arguments, steps=pairs["steps"], quiet=True),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    torch.save(scores(Path(sys.argv[1]), folder), folder / "scores.pt")
