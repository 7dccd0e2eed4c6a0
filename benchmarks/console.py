"""What benchmarks share: arguments, a line about the machine, rows as JSON, separate processes, curves."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def arguments(doc: str | None, **switches: str) -> argparse.ArgumentParser:
    """A parser whose help is the benchmark's docstring; `switches` are options without a value, with their help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, does in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=does)
    return parser


def show(**row: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(row), flush=True)


def machine(*packages: str, device: str = "cpu", **more: object) -> None:
    """Print a line about the machine: under other load, rows are worth nothing."""
    import torch

    processor = (
        torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    )
    load, versions = round(os.getloadavg()[0], 2), {name: version(name) for name in ("torch", *packages)}
    show(name="machine", processor=processor, threads=torch.get_num_threads(), load=load, **versions, **more)


def apart(function: Callable[..., Any], *values: Any) -> Any:
    """What a function returns in a separate process, which may have child processes.

    In this process, memory freed by another job would hide what this one takes.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *values).result()


def curves(
    title: str,
    panels: Sequence[tuple[str, str, Sequence[float], Mapping[str, Sequence[float]]]],
    styles: Mapping[str, str],
    file: Path,
    unit: str = "seconds",
    scale: str = "log",
) -> None:
    """Draw lines into a file, on logarithmic axes or another `scale`.

    A panel is a title, the name of what varies, its values, and lines by name. A style is a colour of
    `analyses.figures.style`, a line style, and a width: "INK -- 2".
    """
    from analyses.figures import style

    @style.styled
    def draw() -> None:
        figure, axes = style.panels(title, len(panels), height=2.6, columns=min(2, len(panels)))
        labels: set[str] = set()
        for axis, (heading, label, x, lines) in zip(axes, panels, strict=False):
            for name, y in lines.items():
                words = styles[name].split()
                colour, line, width = (*words, *("-", "1.5")[len(words) - 1 :])
                axis.plot(x, y, f"o{line}", color=getattr(style, colour), lw=float(width), ms=3.5, label=name)
            axis.set(xscale=scale, yscale=scale, xlabel=label, ylabel=unit, title=heading)
            axis.set_xticks([*x], labels=[f"{value:,}" for value in x])
            axis.minorticks_off()
            axis.yaxis.set_major_formatter("{x:g}")
            if not lines.keys() <= labels:
                axis.legend(frameon=False, fontsize=7)
                labels |= lines.keys()
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110)

    draw()
