"""What knows no operator: kernels and their launch, rewriting, spans, scopes, extents."""
