"""Which set of parts is enough for a task? We keep some nodes or edges and set everything else to a reference."""

from interp.circuits.completeness import Gaps, completeness, minimality
from interp.circuits.faithfulness import faithfulness
from interp.circuits.finding import edge_scores, greedy, node_attribution, node_scores, single_edges, stable, top
from interp.circuits.graph import Circuit, empty, from_edges, from_nodes, whole
from interp.circuits.hypotheses import hypotheses
from interp.circuits.keeping import keep
from interp.circuits.random_circuits import random_circuit
from interp.circuits.size_curves import SizeCurve, size_curve
from interp.circuits.splits import Split
from interp.components import Graph

__all__ = ["Circuit", "Graph", "empty", "faithfulness", "from_edges", "from_nodes", "keep", "whole"]
__all__ += ["Gaps", "SizeCurve", "Split", "completeness", "edge_scores", "greedy"]
__all__ += ["hypotheses", "minimality", "node_attribution", "node_scores", "random_circuit", "single_edges"]
__all__ += ["size_curve", "stable", "top"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
