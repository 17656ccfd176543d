"""Grid worlds: maps, walks on them, and the tasks that are built from them."""
