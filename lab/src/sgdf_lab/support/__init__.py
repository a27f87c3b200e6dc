"""What every room uses: errors, files, provenance, numerics, colours. It imports no other room."""
