"""Effects estimated from gradients: `attribution_patching`, `atp_star`, `edge_attribution`, `estimated_knock_out`."""
