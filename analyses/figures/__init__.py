"""What do the tables look like? Each function draws one figure from a table, and its title asks what it answers.

Nothing is computed here, no model is run, and no plotting state is changed. All functions take `**page` (`Page`), the
figure's layout. They check their tables: missing rows, or rows of several models or runs, raise an `InputError`.
"""

from analyses.figures.curves import circuit_curve, forming, lens_line, lens_map, probes_by_layer, token_bars
from analyses.figures.head_figures import (
    Quantity,
    compared_gains,
    effect_grid,
    explained_bars,
    gain_intervals,
    head_grid,
    suite_map,
)
from analyses.figures.single_heads import best_heads, pattern_atlas, three_attentions, word_lines
from analyses.figures.style import Drawn, Page, literal, measure_name, page
from analyses.figures.sweep_maps import cell_map, cell_name, map_cells, metric_unit, steps, sweep_drawings, top_cells
from analyses.wording.head_names import head_name

__all__ = ["Drawn", "Page", "Quantity", "best_heads", "cell_map", "cell_name", "compared_gains", "effect_grid"]
__all__ += ["circuit_curve", "explained_bars", "forming", "gain_intervals", "head_grid", "head_name"]
__all__ += ["lens_line", "lens_map", "literal", "map_cells", "measure_name", "metric_unit", "page", "pattern_atlas"]
__all__ += ["probes_by_layer", "steps", "suite_map", "sweep_drawings", "three_attentions", "token_bars", "top_cells"]
__all__ += ["word_lines"]
__dir__ = __all__.copy  # so that `dir()` lists only the public names
