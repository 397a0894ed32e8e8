"""memwal: an LSM write path for Lance tables."""
