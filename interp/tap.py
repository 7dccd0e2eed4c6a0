"""How does a call read and change activations? By a tap, an argument of the call, which leaves nothing behind."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from interp.errors import InputError, inside

Edit = Callable[[Tensor], Tensor]


class AllCaptured(Exception):  # noqa: N818 - not an error
    """The call has captured the last site that it was to run until."""


@dataclass
class Tap:
    """What one call captures and edits, by the full name of each site; `activations` fills as the call proceeds.

    After the last of the sites `until`, the call ends with `AllCaptured`.
    """

    capture: Collection[str] = ()
    edit: Mapping[str, Edit] = field(default_factory=dict)
    until: Collection[str] = ()
    activations: dict[str, Tensor] = field(default_factory=dict)
    fired: set[str] = field(default_factory=set)
    place: str = ""

    def at(self, name: str) -> "Tap":
        """The same tap inside the part called `name`."""
        if not self.capture and not self.edit:
            return self
        return Tap(self.capture, self.edit, self.until, self.activations, self.fired, f"{self.place}{name}.")

    def wants(self, name: str) -> bool:
        """Whether this part's site `name` is captured or edited."""
        site = self.place + name
        return site in self.edit or site in self.capture

    def __call__(self, name: str, value: Tensor, restore: Edit | None = None) -> Tensor:
        """Pass `value` through the site `name`: edit it, `restore` what no edit may change, then capture it."""
        if not self.capture and not self.edit:
            return value
        site = self.place + name
        if site in self.edit:
            with inside(f"the edit of {site}"):
                edited = self.edit[site](value)
            if edited.shape[-value.ndim :] != value.shape:
                raise InputError(f"the edit of {site} must keep its shape {(*value.shape,)}, got {(*edited.shape,)}")
            value = edited if restore is None else restore(edited)
            self.fired.add(site)
        if site in self.capture:
            if any(value is each for each in self.activations.values()):
                value = value.clone()  # so that writing to one captured value changes no other
            self.activations[site] = value
            if site in self.until and all(name in self.activations for name in self.until):
                raise AllCaptured
        return value


UNTAPPED = Tap()
