"""Public functions refuse wrong arguments in one line: every word for a `Literal`, every keyword, every seed. We find
functions by walking the packages, and arguments by their annotations.

A function that needs an argument with a new name fails here until `VALUES` has a value for it.
"""

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, Unpack, get_args, get_origin, get_type_hints

import pandas as pd
import pytest
import torch
from tiny import GPT2, model, token_ids

import analyses
import interp
import models
from analyses import circuit as circuit_room
from analyses import corpora
from analyses import suites as suite_room
from analyses.figures import Drawn
from analyses.runs import RunFolder
from interp import (
    InputError,
    Pairs,
    Phase,
    Plan,
    TransformerConfig,
    circuits,
    generate,
    logit_difference,
    patching,
    run,
    sweep,
)
from interp.attribution import direct_logit_attribution, logit_lens, score_attribution
from interp.config import Gated, LayerNorm, Plain, RMSNorm, Rotary, Sinusoidal, Transform
from interp.display import Result
from interp.edits import SelectiveEdit
from interp.training import Windows
from models import recipes
from models.sources import CHECKPOINTS
from models.stories import story

pytestmark = pytest.mark.filterwarnings("ignore::interp.errors.InputWarning")  # a random model does no task
ROOT = Path(__file__).resolve().parents[1]
WRONG = "nois"
QUESTIONS = ["analyses.position", "analyses.part_of_speech", "analyses.coreference", "analyses.own_measures"]


@pytest.fixture(autouse=True)
def unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check no annotations, as for users, and write files elsewhere."""
    monkeypatch.chdir(tmp_path)


@cache
def decoder() -> Any:
    return model("gpt2", dtype=torch.float32)


@cache
def pairs() -> Pairs:
    return Pairs.from_ids(decoder(), token_ids(3, 5), token_ids(3, 5, seed=1), [3, 4, 5], [6, 7, 8])


def answers() -> Any:
    return logit_difference(torch.tensor([1, 2]), torch.tensor([3, 4]))


def prompts() -> pd.DataFrame:
    return pd.DataFrame({"clean": ["Tim was"], "corrupt": ["Sue was"], "answer": [" he"], "wrong": [" she"]})


ids = partial(token_ids, 2, 5)


def patched(call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    return call(decoder(), pairs(), logit_difference(), *arguments, **settings)


def split() -> tuple[Any, Any]:
    return circuits.Split.from_pairs(pairs()), logit_difference()


SITES = {"z": ("layer", "head")}
WRITTEN = ["score_attribution", "value_attribution", "key_contributions", "remove_from_key"]
VALUES: dict[str, Callable[[], Any]] = {  # keys: argument, package and argument, or function and argument
    "model": decoder,
    "pairs": pairs,
    "analyses.suites.builtin.name": lambda: "agreement",
    "suite": partial(suite_room.builtin, "agreement", pairs=1),
    "suites": lambda: [suite_room.builtin("agreement", pairs=1)],
    **dict.fromkeys(["tokens", "prompt", "prompts", "texts", "interp.attribution.head_results.out"], ids),
    "analyses.circuit.find.prompts": lambda: circuit_room.prompts_of(pairs(), pd.DataFrame(index=range(3))),
    "task": lambda: "agreement",
    "sites": lambda: SITES,
    **dict.fromkeys(["cells", "order"], lambda: [(0, 0)]),
    "sets": lambda: [[(0, 0)]],
    "receivers": lambda: [patching.Receiver("q", 1, 0)],
    "claims": lambda: [patching.Claim(0, [2], [[True, False, False, False, False]])],
    **dict.fromkeys(["metric", "metrics"], logit_difference),
    **dict.fromkeys([f"interp.patching.ablate{each}.metrics" for each in ("", "_cells", "_in_order")], answers),
    **dict.fromkeys(["graph", "Graph", "source"], lambda: circuits.Graph.from_model(decoder())),
    **dict.fromkeys(["circuit", "circuits", "Circuit", "other"], lambda: circuits.empty(decoder())),
    "split": lambda: circuits.Split.from_pairs(pairs()),
    "scores": lambda: torch.zeros(*circuits.Graph.from_model(decoder()).shape, 3),
    "groups": lambda: [*"abc"],
    "size": lambda: 1,
    "interp.circuits.minimality.circuit": lambda: circuits.whole(decoder(), "nodes"),
    "Gaps": lambda: circuits.completeness(decoder(), *split(), circuits.empty(decoder(), "nodes")),
    "SizeCurve": lambda: circuits.size_curve(decoder(), *split(), shares=(0.5, 1.0), n_random=1),
    **{"edges": list, "nodes": list, "members": lambda: circuits.empty(decoder()).members},
    "layer": lambda: 0,
    "rows": lambda: [[1, 2], [3]],
    "value": lambda: torch.zeros(()),
    "factor": lambda: 1.0,
    "interp.config.Transform.norm": LayerNorm,
    "analyses.measures.definitions.declared.behaviour": lambda: "position",
    "analyses.measures.definitions.declared.name": lambda: "entropy",
    "interp.change.function": lambda: lambda value: value,
    "interp.generate_pieces.model": lambda: models.load("default"),
    "interp.patching.Sweep.rows.metric": lambda: "logit_difference",
    "interp.patching.Claim.prompt": lambda: 0,
    "queries": lambda: [2],
    "keys": lambda: [[True]],
    "shared": lambda: False,
    **dict.fromkeys(["types", "interp.probes.control_labels.labels"], lambda: [0, 1]),
    **{f"interp.config.StackConfig.{each.name}": partial(getattr, GPT2, each.name) for each in fields(GPT2)},
    "phases": lambda: (Phase(1, 2, 8),),
    "plan": lambda: Plan((Phase(1, 2, 8),), warmup=0),
    "sources": lambda: {"ids": Windows(torch.arange(29))},
    "save": lambda: models.save,
    "out": lambda: Path("out"),
    # returned objects, whose methods are public
    "Sweep": lambda: patched(sweep),
    "Ablation": lambda: patching.ablate(decoder(), ids(), answers()),
    "Magnitudes": lambda: patched(patching.atp_star, SITES)["z"],
    "SiteEstimates": lambda: patched(patching.attribution_patching, SITES),
    "TopCells": lambda: patched(patching.top_cells, k=2),
    "Edges": lambda: patched(patching.edge_attribution),
    **dict.fromkeys(["DirectAttribution", "attribution"], lambda: direct_logit_attribution(decoder(), ids(), 1, 2)),
    "LogitLens": lambda: logit_lens(decoder(), ids()),
    **dict.fromkeys([f"interp.attribution.{each}.out" for each in WRITTEN], lambda: run(decoder(), ids())),
    **dict.fromkeys(["head", "query", "key", "interp.attribution.key_contributions.rows"], lambda: 0),
    "writers": list,
    "ScoreAttribution": lambda: score_attribution(run(decoder(), ids()), 1, 0, -1, 0),
    "Run": lambda: run(decoder(), ids()),
    # of models
    "models.load.name": lambda: "default",
    "directory": lambda: CHECKPOINTS / "default",
    "dtype": lambda: torch.float32,
    "device": lambda: torch.device("cpu"),
    "placement": lambda: ["cpu"],
    "names": lambda: ("weight",),
    "strength": lambda: 1.0,
    "count": lambda: 1,
    **dict.fromkeys(["seed", "index"], lambda: 0),
    "Recipe": lambda: recipes.read("small"),
    # of analyses
    "analyses.model": lambda: models.load("default"),
    "analyses.prompts": prompts,
    "analyses.pairs": lambda: Pairs.from_columns(models.load("default"), prompts()),
    "corpus": lambda: [story(0, 0)],
    "corpora": lambda: [corpora.read("stories:1")],
    "analyses.labels.label.corpora": dict,
    "models": lambda: dict.fromkeys(["one", "other"], models.load("default")),
    "folders": lambda: [Path("run")],
    "load": lambda: models.load,
    "run": lambda: RunFolder(Path("run"), "run", {"files": []}),
    **dict.fromkeys(["title", "name"], lambda: "measure"),
    **dict.fromkeys(["measures", "headline"], list),
    "collector": lambda: None,
    "analyses.own_measures.measure_pairs.pairs": lambda: lambda text: [],
    "length": lambda: 3,
    "Drawn": Drawn,
    "fname": lambda: "figure.png",
}
BESIDE = {"interp.attribution.LogitLens.table": {"right": 1, "wrong": 2}}  # without these, the seed is not used
FIELDS = {RMSNorm: "norm", Sinusoidal: "positions", Rotary: "positions", Plain: "mlp", Gated: "mlp"}


class Public(NamedTuple):
    name: str
    call: Callable[..., Any]
    method_of: str = ""

    def hints(self) -> dict[str, Any]:
        """The annotation of each argument, including keywords listed by a `TypedDict`."""
        result = get_type_hints(self.call.__init__ if inspect.isclass(self.call) else self.call)
        result.pop("return", None)
        for name, kind in [*result.items()]:
            if get_origin(kind) is Unpack:
                del result[name]
                result |= get_type_hints(get_args(kind)[0])
        return result

    def takes_any_keyword(self) -> bool:
        return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(self.call).parameters.values())

    def __call__(self, **arguments: Any) -> Any:
        """Call the function, with values for its other arguments, and use the result as intended."""
        arguments = {**BESIDE.get(self.name, {}), **arguments}
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        parameters = [each for each in inspect.signature(self.call).parameters.values() if each.kind not in variadic]
        needed = [each.name for each in parameters if each.default is each.empty and each.name not in arguments]
        values = {name: self.value(name) for name in needed}
        result = self.call(*([values.pop("self")] if "self" in values else []), **values, **arguments)
        if type(result) in FIELDS:  # wrong words are refused when a configuration is assembled
            return replace(GPT2, **{FIELDS[type(result)]: result})
        if isinstance(result, Transform):
            return TransformerConfig(decoder=GPT2, transform=result)
        if isinstance(result, patching.Receiver):
            return patched(patching.path_patch, [result])
        if isinstance(result, SelectiveEdit):
            return run(decoder(), ids(), edit={"decoder.0.attn.z": result})
        return [*result] if isinstance(result, Iterator) else result

    def value(self, name: str) -> Any:
        if self.name.startswith("analyses.figures.") and not self.method_of:
            return None  # words and keywords are checked before drawing
        name = self.method_of if name == "self" else name
        places = f"{self.name}.{name}", f"{self.name.split('.')[0]}.{name}", name
        make = next((VALUES[each] for each in places if each in VALUES), None)
        assert make is not None, f"VALUES lacks {places[0]}"
        return make()


def inside(package: types.ModuleType) -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.walk_packages(package.__path__, f"{package.__name__}.")


def walked() -> Iterator[types.ModuleType]:
    """Packages that list public names, modules on the API pages, and the questions."""
    packages = [result.name for root in (interp, models, analyses) for result in inside(root) if result.ispkg]
    modules = [importlib.import_module(name) for name in packages if name != "models.lens"]  # needs TransformerLens
    yield from (module for module in (interp, models, analyses, *modules) if hasattr(module, "__all__"))
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        yield from map(importlib.import_module, re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE))
    yield from map(importlib.import_module, ["interp.config", *QUESTIONS])


RETURNED = Result, dict, pd.DataFrame, Drawn  # classes that calls return and nobody calls


def public() -> Iterator[Public]:
    for module in walked():
        names = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", [name for name in names if not name.startswith("_")]):
            member, place = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isroutine(member):
                yield Public(place, member)
            elif inspect.isclass(member) and not getattr(member, "_is_protocol", False):
                if not issubclass(member, RETURNED):
                    yield Public(place, member)
                for method, function in vars(member).items():
                    bare = getattr(function, "__func__", function)
                    if inspect.isfunction(bare) and not method.startswith("_"):
                        yield Public(f"{place}.{method}", bare, name)


PUBLIC = [*{id(each.call): each for each in public()}.values()]
WITH_KEYWORDS = [each for each in PUBLIC if each.takes_any_keyword()]
SEEDED = [each for each in PUBLIC if "seed" in each.hints() and (inspect.isroutine(each.call) or each.call is Plan)]


def alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, types.UnionType) or get_origin(kind) is Union else (kind,)


def wrong_value(kind: Any) -> Any:
    """A word that the annotation does not allow; None if it lists no words."""
    for part in alternatives(kind):
        if get_origin(part) is Literal:
            return WRONG
        if get_origin(part) in {Sequence, Collection} and get_origin(get_args(part)[0]) is Literal:
            return [WRONG]
    return None


LITERALS = [
    pytest.param(function, name, wrong_value(kind), id=f"{function.name}-{name}")
    for function in PUBLIC
    for name, kind in function.hints().items()
    if wrong_value(kind)
]


DIRECTED = [case.values[0] for case in LITERALS if case.values[1] == "direction"]


def test_the_walk_finds_what_is_public():
    assert len(PUBLIC) > 250
    assert len(LITERALS) > 60
    calls = {each.call for each in PUBLIC}
    assert {sweep, patching.ablate, generate, models.load, analyses.view, corpora.read, Pairs.from_columns} <= calls


@pytest.mark.parametrize(("function", "name", "wrong"), LITERALS)
def test_a_word_that_is_none_of_an_arguments_is_refused(function, name, wrong):
    with pytest.raises(InputError, match=rf"^[^\n]*{WRONG}[^\n]*$"):
        function(**{name: wrong})


@pytest.mark.parametrize("function", WITH_KEYWORDS, ids=lambda item: item.name)
def test_an_unknown_keyword_is_refused(function):
    """Python itself refuses other functions' unknown keywords."""
    with pytest.raises((InputError, TypeError), match="donor"):
        function(donor=1)


@pytest.mark.parametrize("function", SEEDED, ids=lambda item: item.name)
def test_a_seed_that_is_no_whole_number_is_refused(function):
    with pytest.raises(InputError, match=r"expected a whole number as seed, 0 or more .*; got 1\.5"):
        function(seed=1.5)


def test_a_name_of_an_argument_takes_words_everywhere_or_nowhere():
    """Otherwise, some function annotates a list of words as `str`."""
    functions = [each for each in PUBLIC if inspect.isroutine(each.call) and not each.method_of]
    kinds = [(name, alternatives(kind)) for function in functions for name, kind in function.hints().items()]
    worded = {name for name, parts in kinds if any(get_origin(part) is Literal for part in parts)}
    plain = {name for name, parts in kinds if str in parts and not any(get_origin(part) is Literal for part in parts)}
    assert not worded & plain


@pytest.mark.parametrize("function", DIRECTED, ids=lambda item: item.name)
def test_denoising_and_noising_mean_what_they_say(function):
    for alias, name in (("denoising", "denoise"), ("noising", "noise")):
        first, second = (function(direction=each) for each in (alias, name))
        assert repr(first) == repr(second) if isinstance(first, dict) else first.table().equals(second.table())
