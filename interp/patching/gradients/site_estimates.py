"""What do estimates of several sites say together? Each site's own result by its name, and one table of all."""

from collections.abc import Mapping
from typing import Any, TypeVar

from interp.errors import InputError
from interp.patching.cell_tables import ESTIMATED, largest
from interp.patching.results import Sweep
from interp.showing import DataFrame, Figure, Shown, signed, so_many
from interp.statistics import benjamini_hochberg

Found = TypeVar("Found", bound=Shown)
_WHERE = ("stack", "attention", "site", "layer", "head", "neuron", "expert", "position", "query", "key")


class SiteEstimates(dict[str, Found], Shown):
    """Estimates by site, `found["z"]` or `found.items()`: each a `Sweep` or `Magnitudes`, in one table together."""

    __repr__ = Shown.__repr__

    def table(self, *, seed: int = 0) -> DataFrame:
        """The rows of all sites' tables, each axis that a site lacks missing; `q` is over all of them.

        Args:
            seed: of the intervals' resampling.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        tables = [found.table(seed=seed) for found in self.values()]  # pyright: ignore[reportAttributeAccessIssue]
        table = pd.concat(tables, ignore_index=True)
        table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
        for axis in {*_WHERE} & {*table.columns}:
            if pd.api.types.is_float_dtype(table[axis]):  # some site lacks it
                table[axis] = table[axis].astype("Int64")
        first = [axis for axis in _WHERE if axis in table]
        numbers = [name for name in ESTIMATED if name in table]
        own = [name for name in table if name not in {*first, *numbers}]
        return table.loc[:, [*first, *own, *numbers]]

    def figure(self, site: str | None = None, **how: Any) -> Figure:
        """The figure of one site, by default of the first.

        Args:
            site: which.
            how: of `Sweep.figure`: `metric`, `kind`, `title`, `width`, `font_size`, `ax`, ...

        Raises:
            InputError: there is no such site, metric or kind.
        """
        if site is not None and site not in self:
            raise InputError(f"these estimates have no site {site!r}: expected {' or '.join(self)}")
        chosen: Any = self[next(iter(self)) if site is None else site]
        return chosen.figure(**how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The largest estimates of each site and metric."""
        facts: dict[str, str] = {}
        first: Any = next(iter(self.values()))
        prompts = next(iter(first.values.values())).shape[-1]
        for site, each in self.items():
            found: Any = each
            for metric, values in found.values.items():
                effect = found.effect(metric) if isinstance(each, Sweep) else values
                said = [f"{name} {signed(value)}" for name, value in largest(found.axes, effect, found.positions)]
                facts[f"largest of {site} on {metric}"] = ", ".join(said)
        kind = "Estimated effects" if isinstance(first, Sweep) else "Estimated magnitudes"
        title = f"{kind}, {first.direction}: {so_many(len(self), 'site')}, over {so_many(prompts, 'prompt')}"
        return title, facts
