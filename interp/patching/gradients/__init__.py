"""Patching effects estimated from gradients: `attribution_patching`, `atp_star` and `edge_attribution`."""
