"""States never trained on."""
