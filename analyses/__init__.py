"""Questions: each module measures, figures draw, a report and a command line put them together."""
