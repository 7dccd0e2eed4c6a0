"""From a directory to a bridge, from a bridge to one of our models, and from one of ours to a bridge."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES, ArchitectureAdapterFactory
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_config_from_hf, build_bridge_from_module
from transformer_lens.model_bridge.sources._hf_format import determine_architecture_from_hf_config
from transformer_lens.model_bridge.sources.transformers.helpers import get_hf_model_class_for_architecture
from transformers import AutoConfig, PreTrainedModel

from interp import InputError, Model, TokenBatch, Tokenizer, TransformerConfig, run
from interp.model import sites_of
from interp.tap import Edit
from models.families import FAMILIES
from models.huggingface import CONFIG, described, read_json, read_tokenizers, save, weight_files
from models.huggingface.model_files import file_states
from models.lens import unheard
from models.lens.bridged_config import describe
from models.lens.bridged_model import Bridged, sites
from models.lens.hooks import Hooks, agree, candidates, find
from models.tensor_files import DTYPES, read_header

_SHORT, _LONG, _TARGET = 5, 7, 6  # tokens of the texts that test a bridge


def open_directory(directory: Path, dtype: torch.dtype, device: torch.device) -> Bridged:
    """The model in `directory`: read by `transformers`, wrapped by TransformerLens."""
    raw = read_json(directory / CONFIG)
    if raw.get("quantization_config") is not None:
        raise InputError(f"{directory}: config.json has a quantization_config: quantized weights are not supported")
    for file in weight_files(directory):
        for name, tensor in read_header(file).items():
            if tensor.kind not in DTYPES:
                raise InputError(f"{file}: {name} is stored as {tensor.kind}; expected {', '.join(DTYPES)}")
    states = file_states(directory)
    with _quiet():
        loaded = _loaded(directory, dtype, device)
        bridge = build_bridge_from_module(loaded.model, loaded.architecture, hf_config=loaded.model.config)
        try:
            exact = described(directory)[-1]
        except InputError:
            exact = None  # no family of ours
        model = _wrapped(bridge, loaded, exact)
    model.source, model.files = directory, states
    model.tokenizer, model.target_tokenizer = read_tokenizers(directory, model.config)
    return model


def wrap_bridge(bridge: TransformerBridge, tokenizer: Tokenizer | None, target_tokenizer: Tokenizer | None) -> Bridged:
    """The model of a bridge that somebody has made."""
    if getattr(bridge, "compatibility_mode", False):
        raise InputError(
            "this bridge is in compatibility mode, which folds norms into weights and so changes what sites mean: "
            "give a bridge as it was loaded"
        )
    whole: Any = bridge.original_model
    with _quiet():
        model = _wrapped(bridge, Loaded.from_model(whole, str(bridge.cfg.architecture)), None)
    model.tokenizer, model.target_tokenizer = tokenizer, target_tokenizer or tokenizer
    return model


def bridge_of(model: Model) -> TransformerBridge:
    """A bridge with our model's weights, by way of the directory that `transformers` reads."""
    if isinstance(model, Bridged):
        return model.bridge
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder, _quiet(), suppress(InputError):
            save(model, Path(folder), name)
            loaded = _loaded(Path(folder), model.dtype, model.device)
            return build_bridge_from_module(loaded.model, loaded.architecture, hf_config=loaded.model.config)
    raise InputError(f"no architecture that TransformerLens wraps expresses this model: {model.config}")


@dataclass(frozen=True)
class Loaded:
    """A model of `transformers`, and what a bridge around it hides."""

    model: Any
    architecture: str
    weights: Mapping[str, nn.Parameter]
    has_output: bool

    @staticmethod
    def from_model(model: PreTrainedModel, architecture: str, lacking: Sequence[str] = ()) -> "Loaded":
        """Read it before it is wrapped: a bridge replaces its modules.

        `lacking` are weights that no file had: those of an output layer, which the model then lacks.
        """
        weights = {name: weight for name, weight in model.named_parameters() if name not in lacking}
        return Loaded(model, architecture, weights, model.get_output_embeddings() is not None and not lacking)


def _loaded(directory: Path, dtype: torch.dtype, device: torch.device) -> Loaded:
    """The model that `transformers` makes of a directory; nothing is fetched and no foreign code runs."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(directory, **local)
        architecture = determine_architecture_from_hf_config(config)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(
            f"{directory}: transformers or TransformerLens does not know this model: {_line(error)}"
        ) from error
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise InputError(f"{directory}: TransformerLens does not wrap {architecture}")
    options: dict[str, Any] = {**local, "config": config, "dtype": dtype, "attn_implementation": "eager"}
    options |= {"use_safetensors": True, "output_loading_info": True}
    adapter = ArchitectureAdapterFactory.select_architecture_adapter(
        build_bridge_config_from_hf(config, architecture, str(directory), dtype)
    )
    adapter.prepare_loading(str(directory), options)
    try:
        kind: Any = get_hf_model_class_for_architecture(architecture)
        model, report = kind.from_pretrained(directory, **options)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise InputError(f"{directory}: transformers cannot load this model: {_line(error)}") from error
    lacking = sorted(report.get("missing_keys", ()))
    if any(name.startswith(f"{model.base_model_prefix}.") for name in lacking):
        raise InputError(f"{directory}: the weights lack {', '.join(lacking[:3])}, which {architecture} asks for")
    for name, weight in model.named_parameters():
        if name in lacking:  # drawn at random and unused: make it the same in every call
            weight.data.zero_()
    _check_numbers(directory, model)
    return Loaded.from_model(model.to(device).eval(), architecture, lacking)


def _check_numbers(directory: Path, model: nn.Module) -> None:
    """Refuse weights that are not finite, in the files or in the model's dtype."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.numel():
            ends = [float(each) for each in torch.aminmax(weight.detach())]
            if not all(map(math.isfinite, ends)):
                values = "NaN" if any(map(math.isnan, ends)) else "infinite numbers"
                half = weight.dtype == torch.float16
                advice = "load it as torch.float32" if half else "the weights are damaged"
                raise InputError(f"{directory}: {name} holds {values} in {weight.dtype}: {advice}")


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _wrapped(bridge: TransformerBridge, loaded: Loaded, exact: TransformerConfig | None) -> Bridged:
    """The bridge as one of ours; short texts tell its sites and which padding it takes."""
    try:
        trial = Trial(bridge, loaded)
        stacks = trial.hooks()
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:  # the bridge cannot read text
        raise InputError(f"TransformerLens cannot run {loaded.architecture} on a short text: {_line(error)}") from error
    config = describe(bridge.cfg, loaded.model, stacks, trial.shapes, exact)
    places = {place.name: place for hooks in stacks for place in hooks.places()}
    model = Bridged(bridge, config, places, sites(places, sites_of(config), trial.shapes), loaded.weights)
    model.padding = trial.sides(model)
    return model


class Trial:
    """Short random texts that a bridge is tested on."""

    def __init__(self, bridge: TransformerBridge, loaded: Loaded):
        self.bridge, self.has_output, config = bridge, loaded.has_output, loaded.model.config
        self.both = bool(getattr(config, "is_encoder_decoder", False))
        special = {getattr(config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        weight: Any = loaded.model.get_input_embeddings().weight
        ordinary = torch.tensor([id for id in range(weight.shape[0]) if id not in special])
        generator = torch.Generator().manual_seed(0)
        prompts = [ordinary[torch.randint(len(ordinary), (2, n), generator=generator)] for n in (_LONG, _TARGET)]
        self.ids, self.target = (ids.to(weight.device) for ids in prompts)
        self.shapes: dict[str, tuple[int, ...]] = {}  # by hook, and of the logits

    def hooks(self) -> list[Hooks]:
        """The sites of each stack."""
        causal = getattr(self.bridge.cfg, "attention_dir", "causal") == "causal"
        stacks = {"decoder" if causal else "encoder": ("blocks", "ln_final")}
        if self.both:
            stacks = {name: (f"{name}_blocks", f"{name}_ln_final") for name in ("encoder", "decoder")}
        return [self._stack(name, *parts) for name, parts in stacks.items()]

    def _stack(self, name: str, blocks: str, norm: str) -> Hooks:
        try:
            n_layers = len(getattr(self.bridge, blocks))
        except (AttributeError, TypeError) as error:
            raise InputError(f"this bridge has no {blocks!r}, whose hooks could be our sites") from error
        points: dict[int, list[str]] = {}  # hooks with two names are one
        for hook in candidates(blocks, n_layers, norm):
            if hook in self.bridge.hook_dict:
                points.setdefault(id(self.bridge.hook_dict[hook]), []).append(hook)
        return find(lambda edits: self._run(edits, [*points.values()]), name, blocks, n_layers, norm)

    @torch.no_grad()
    def _run(self, edits: Mapping[str, Edit], points: Sequence[Sequence[str]]) -> dict[str, Tensor]:
        """The values at some hooks, each by all of its names, and the logits."""
        values: dict[str, Tensor] = {}

        def passing(names: Sequence[str], value: Any, **_: Any) -> Tensor | None:
            if not isinstance(value, Tensor):
                return None
            edited = value
            for edit in (edits[name] for name in names if name in edits):
                edited = edit(edited)
            values.update(dict.fromkeys(names, edited.clone()))
            return None if edited is value else edited

        inputs: dict[str, Any] = {"decoder_input": self.target} if self.both else {}
        hooks: Any = [(names[0], partial(passing, names)) for names in points]
        out: Any = self.bridge.run_with_hooks(self.ids, hooks, **inputs)
        if isinstance(out, Tensor) and self.has_output:
            values["logits"] = out
        self.shapes |= {hook: tuple(value.shape) for hook, value in values.items()}
        return values

    @torch.no_grad()
    def sides(self, model: Bridged) -> frozenset[str]:
        """The sides on which padding leaves a text's numbers as they are."""
        return frozenset(side for side in ("left", "right") if self._pads(model, side))

    def _pads(self, model: Bridged, side: Any) -> bool:
        texts, targets = ([rows[0], rows[1][:_SHORT]] for rows in (self.ids.tolist(), self.target.tolist()))
        site = f"{list(model.config.stacks)[-1]}.{model.config.n_layers - 1}.resid_post"

        def ends(*rows: int) -> list[Tensor]:
            batch, target = (TokenBatch.from_rows([each[row] for row in rows], side=side) for each in (texts, targets))
            out = run(model, batch, capture=site, target=target if self.both else None)
            decoded = out.tokens if out.target is None else out.target
            return [stream[mask] for stream, mask in zip(out[site], decoded.mask, strict=True)]

        try:
            return site in model.places and all(map(agree, ends(0, 1), [*ends(0), *ends(1)]))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False  # the bridge takes no mask


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, advice or warnings of the libraries."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        with unheard():
            yield
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
