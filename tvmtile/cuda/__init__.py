"""TileLang's dialect of NVIDIA's GPUs: `tvmtile.cuda.language` is `tvmtile.language`."""
