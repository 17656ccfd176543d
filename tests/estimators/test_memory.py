"""A memory map is read in pieces."""

import tracemalloc

import numpy as np

from derex import DeRex

ROWS, SIZE = 100_000, 64  # 25 MB a side


def test_a_fit_does_not_load_a_memory_map(tmp_path, monkeypatch):
    monkeypatch.setattr("derex.networks.layers.BLOCK_BYTES", 1 << 20)
    maps = []
    for name in "xy":
        array = np.lib.format.open_memmap(tmp_path / name, "w+", np.float32, (ROWS, SIZE))
        array[::1000] = np.random.default_rng(0).normal(size=(ROWS // 1000, SIZE))
        array.flush()
        maps.append(np.load(tmp_path / name, mmap_mode="r"))
    tracemalloc.start()
    DeRex(2, encoder="linear", steps=4, batch_size=256, random_state=0).fit(*maps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.7 * maps[0].nbytes
