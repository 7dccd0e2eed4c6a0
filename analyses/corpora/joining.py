"""Several corpora as one."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from warnings import warn

from analyses.corpora.corpus import Corpus
from interp.annotation import AnnotatedText
from interp.errors import InputError, InputWarning


def join(corpora: Sequence[Corpus], *, name: str | None = None) -> Corpus:
    """The texts of several corpora, one after another.

    It annotates what all of them do; what only some do is warned of, and left out. Documents of the same name are one
    document. The digest is made from theirs, in their order.

    Args:
        corpora: what to join; a corpus may not come twice.
        name: what to call it; by default by their names.

    Raises:
        InputError: none, something that is no corpus, or one that comes twice.
    """
    if not corpora:
        raise InputError("join: expected at least one corpus, got none")
    for at, each in enumerate(corpora):
        if not isinstance(each, Corpus):
            raise InputError(
                f"join: expected corpora, got {type(each).__name__}: corpora.read or corpora.take makes one"
            )
        if each.digest in {earlier.digest for earlier in corpora[:at]}:
            raise InputError(f"join: {each.name} comes twice, so its texts would count twice: leave one out")
    shared = frozenset.intersection(*(each.annotates for each in corpora))
    called = name or " + ".join(each.name for each in corpora)
    if some := sorted(frozenset.union(*(each.annotates for each in corpora)) - shared):
        lacking = [each.name for each in corpora if not each.annotates >= {*some}]
        warn(
            f"{called}: {', '.join(lacking)} has no {' and no '.join(some)}, so what needs them is not measured on it; "
            "give corpora one by one to have each behaviour measured on the first that serves",
            InputWarning,
            stacklevel=2,
        )

    def source() -> Iterator[AnnotatedText]:
        return chain.from_iterable(corpora)

    digest = hashlib.sha256("\n".join(["join", *(each.digest for each in corpora)]).encode()).hexdigest()
    kinds = {each.kind for each in corpora}
    kind = corpora[0].kind if len(kinds) == 1 else "joined"
    files = tuple(file for each in corpora for file in each.files)
    return replace(corpora[0], name=called, kind=kind, annotates=shared, digest=digest, source=source, files=files)
