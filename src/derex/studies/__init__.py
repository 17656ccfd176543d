"""The experiments behind `derex reproduce`: options and grids in `definitions`, one module for each study."""
