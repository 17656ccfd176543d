"""Studies: one folder each, with its definition as data, its run and its analysis."""
