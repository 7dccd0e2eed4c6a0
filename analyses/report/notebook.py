"""How does one look at a run or a sweep in a notebook? As a page in a frame, or a picture where no script runs."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from analyses.viewer.passages import Viewer, head_named, passage, read, read_texts
from analyses.viewer.viewer_page import frame, static, write
from interp import InputError, Model, Run, Sweep
from interp.display import Result

_MAX_PROMPTS = 12  # of a run; more are not shown
_SMALL = 150_000  # bytes of patterns that a notebook stores per notebook cell


class View(Result):
    """What a notebook shows for a value: `html` if scripts may run, `svg` if not."""

    def __init__(self, title: str, svg: str, html: str, viewer: Viewer | None = None):
        self.title, self.svg, self.html, self.viewer = title, svg, html, viewer

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """Its title, and how to save it."""
        return self.title, {} if self.viewer is None else {"keep": 'view(...).save("view.html")'}

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self.html, "image/svg+xml": self.svg, "text/plain": repr(self)}

    def save(self, out: str | Path, *, force: bool = False) -> None:
        """Write it as a standalone page, replacing an earlier page or, with `force`, any other file."""
        if self.viewer is None:
            raise InputError("only attention makes a page: .figure().savefig() saves a sweep's map")
        write(self.viewer, out, force=force)


def view(
    what: Run | Sweep | Model,
    *texts: str,
    target: str | None = None,
    labels: str | Path | None = None,
    head: str | None = None,
) -> View:
    """Where does each token look, in every head? Or for a sweep: how much does each cell carry?

    Raises an `InputError` for a run without patterns, a model without texts, or texts given with a finished run.

    Args:
        what: a run whose patterns were captured (`capture="*.pattern"`), a model with texts to read, or a sweep.
        texts: what a model reads.
        target: what the decoder of an encoder-decoder reads.
        labels: the directory of a report; heads take names and colours from its atlas, and named heads come first.
        head: the head to show first: `L2.H5`, or `cross.L2.H5` in an encoder-decoder.
    """
    if isinstance(what, Sweep):
        _refuse(texts=texts, target=target, labels=labels, head=head)
        picture = _picture(what)
        return View(what.facts()[0], picture, picture)
    if isinstance(what, Run):
        _refuse(texts=texts, target=target)
        passages = [passage(what, prompt) for prompt in range(min(len(what.tokens.ids), _MAX_PROMPTS))]
        model = what.model
    else:
        if not texts:
            raise InputError('expected a text beside the model: view(model, "The old lady shook her head.")')
        paired = target is not None or len(what.config.stacks) > 1
        passages, model = [read(what, text, target) for text in texts] if paired else read_texts(what, texts), what
    assert model is not None  # a passage needs it
    first, called = None if head is None else head_named(model, head), {}
    if labels is not None:
        from analyses.headlines.facts import called_by  # noqa: PLC0415 reading reports imports the figures

        called = called_by(labels, model)
    viewer = Viewer(tuple(passages), called, first=first, budget=_SMALL)
    return View(f"View of {viewer.size}", static(viewer), frame(viewer), viewer)


def _picture(sweep: Sweep) -> str:
    from matplotlib import rc_context  # noqa: PLC0415 nothing else here draws

    file = StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        sweep.figure().savefig(file, format="svg")
    return file.getvalue()[file.getvalue().index("<svg") :]


def _refuse(**arguments: object) -> None:
    if names := [name for name, value in arguments.items() if value is not None and value != ()]:
        raise InputError(f"a finished run is shown as it is: expected no {', '.join(names)}")
