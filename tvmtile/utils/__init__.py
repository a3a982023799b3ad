"""Names of TileLang's package `utils` that kernels import."""
