"""Side-by-side measurements: what memwal costs beside the raw work, and beside its peer."""
