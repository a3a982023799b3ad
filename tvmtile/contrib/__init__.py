"""Names of TileLang's package `contrib` that kernels import."""
