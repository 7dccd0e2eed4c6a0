"""Which set of parts is enough for a task? Nodes and edges kept alone, everything else as in a reference."""

from interp.circuits.faithfulness import faithfulness
from interp.circuits.graph import Circuit, Graph, empty, from_edges, from_nodes, whole
from interp.circuits.keeping import Kept, keep

__all__ = ["Circuit", "Graph", "Kept", "empty", "faithfulness", "from_edges", "from_nodes", "keep", "whole"]
