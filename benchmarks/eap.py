"""Do edge attribution and its integrated gradients agree with the public package, edge by edge?

    python -m venv ENVIRONMENT
    ENVIRONMENT/bin/pip install torch==2.13.0 transformer-lens==2.16.1 transformers==4.57.6 datasets==3.2.0 \
        pyarrow==16.1.0 numpy==1.26.4
    git clone https://github.com/hannamw/EAP-IG && git -C EAP-IG checkout 62f83cd
    python -m benchmarks.eap --python ENVIRONMENT/bin/python --package EAP-IG/src/eap

The package (Hanna et al.) needs TransformerLens 2, which this project's environment lacks, so it runs in a separate
one. Both read the same random GPT-2s in double precision. Prints one JSON line per model and method:

    method        the package's: EAP, EAP-IG (inputs), EAP-IG (activations)
    as            its equivalent here: direction and `along` of `edge_attribution`
    edges         how many were compared
    difference    the largest difference, as a share of the largest score
    defined       for activations, the package's difference from the scores as defined

The package scores what the corrupted write does to the clean prompt. Its gradients for inputs start at the corrupted
end of the line and leave out the clean end: here `denoise`, with the opposite sign. Its gradients for activations start
at the clean end (`noise`).
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from benchmarks.console import arguments, show
from benchmarks.floor import Shape
from benchmarks.peers import gpt2
from interp import Pairs, logit_difference
from interp.model import Model
from interp.patching import edge_attribution
from interp.patching.gradients.edges import Along
from interp.patching.results import Direction
from models import load

SHAPES = (Shape(layers=2, heads=3, d_model=15, vocabulary=29), Shape(layers=3, heads=2, d_model=14, vocabulary=31))
N_PAIRS, N_TOKENS, STEPS = 5, 7, 4
PROGRAM = Path(__file__).with_name("eap_package.py")
METHODS: dict[str, Any] = {
    "EAP": ("noise", "inputs", 1),
    "EAP-IG (inputs)": ("denoise", "inputs", STEPS),
    "EAP-IG (activations)": ("noise", "layers", STEPS),
}


def ids(shape: Shape, seed: int) -> Tensor:
    """Random prompts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocabulary, (N_PAIRS, N_TOKENS), generator=generator)


def ours(model: Model, pairs: Pairs, direction: Direction, path: Along, steps: int) -> Tensor:
    """Mean scores with the package's sign."""
    cells = edge_attribution(model, pairs, logit_difference(), direction, steps=steps, along=path)
    return cells.effects().mean(-1) * (-1 if direction == "denoise" else 1)


def compared(python: str, package: str, shape: Shape) -> None:
    """Print how far the two are apart."""
    clean, corrupt = ids(shape, 1), ids(shape, 2)
    right, wrong = torch.arange(N_PAIRS), torch.arange(N_PAIRS) + N_PAIRS
    with TemporaryDirectory() as name:
        folder = Path(name)
        theirs = gpt2(shape, n_positions=16, initializer_range=0.3)
        theirs.save_pretrained(folder)
        stored = {"clean": clean, "corrupt": corrupt, "right": right, "wrong": wrong, "steps": STEPS}
        torch.save(stored, folder / "pairs.pt")
        isolated = [python, "-I", PROGRAM]  # some modules here shadow the standard library
        subprocess.run([*isolated, package, folder], check=True)
        package_scores = torch.load(folder / "scores.pt")
        model = load(folder, dtype=torch.float64)
    pairs = Pairs.from_ids(model, clean, corrupt, right, wrong)
    for method, (direction, path, steps) in METHODS.items():
        mine, reference = ours(model, pairs, direction, path, steps), package_scores[method]
        exists = ~mine.isnan()
        size = reference[exists].abs().max()
        line = {"layers": shape.layers, "method": method, "as": f"{direction}, {path}", "edges": int(exists.sum())}
        line["difference"] = float((mine - reference)[exists].abs().max() / size)
        if path == "layers":
            defined = ours(model, pairs, direction, "activations", steps)
            line["defined"] = float((defined - reference)[exists].abs().max() / size)
        show(**line)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--python", required=True, help="the interpreter of the package's environment")
    parser.add_argument("--package", required=True, help="the package's folder, eap")
    options = parser.parse_args()
    for shape in SHAPES:
        compared(options.python, options.package, shape)
