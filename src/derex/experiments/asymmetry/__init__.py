"""Why an SVD and not a symmetrised Laplacian."""
