"""Instructions: read to the last word, each once, with the values and gradients of reading all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks import tokens as instructions
from derex.networks.tokens import (
    STATE,
    InstructionLSTM,
    Instructions,
    count_rows_at_once,
    encode_distinct_rows,
    find_distinct_rows,
)

BUCKETS, LENGTH = 30, 6


@pytest.fixture(scope="module")
def reader() -> InstructionLSTM:
    return InstructionLSTM(BUCKETS, key=jax.random.key(0))


@pytest.fixture(autouse=True)
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are already several parts."""
    monkeypatch.setattr(instructions, "FEWEST_ROWS", 4)


def some_words(rows: int, different: int, seed: int = 0) -> np.ndarray:
    """Rows among `different` instructions of all lengths, none included."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(1, BUCKETS, (different, LENGTH))
    texts *= np.arange(LENGTH) < rng.integers(0, LENGTH + 1, different)[:, None]
    return texts[rng.integers(0, different, rows)].astype(np.int32)


def by_hand(reader: InstructionLSTM, words: np.ndarray) -> np.ndarray:
    """An LSTM in NumPy, over the words that are there."""
    lstm = reader.lstm
    hidden = cell = np.zeros(STATE)
    for word in words[words != 0]:
        gates = np.asarray(reader.table[word] @ lstm.input_weight + hidden @ lstm.state_weight + lstm.bias)
        i, f, g, o = np.split(gates, 4)
        sigma = [1.0 / (1.0 + np.exp(-x)) for x in (i, f, o)]
        cell = sigma[1] * cell + sigma[0] * np.tanh(g)
        hidden = sigma[2] * np.tanh(cell)
    return hidden


def test_the_state_after_the_last_word(reader):
    words = np.asarray([[3, 7, 7, 2, 9, 1], [3, 7, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0], [0] * LENGTH], np.int32)
    out = reader(jnp.asarray(words))
    for row, state in zip(words, out, strict=True):
        np.testing.assert_allclose(state, by_hand(reader, row), rtol=1e-4, atol=1e-6)
    assert not np.any(out[-1])  # nothing said
    longer = np.pad(words, ((0, 0), (0, 3)))
    np.testing.assert_allclose(reader(jnp.asarray(longer)), out, rtol=1e-5, atol=1e-6)


def test_an_empty_instruction_has_no_part_in_the_gradient(reader):
    gradient = eqx.filter_grad(lambda r: jnp.sum(encode_distinct_rows(r, jnp.zeros((3, LENGTH), jnp.int32))))(
        reader
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("rows", "different"), [(1, 1), (40, 1), (40, 7), (40, 1000)])
def test_rows_are_numbered_by_what_they_say(rows, different):
    words = some_words(rows, different)
    found = find_distinct_rows(jnp.asarray(words))
    wanted = len(np.unique(words, axis=0))
    assert found.count == wanted  # no two of these share a hash
    assert set(np.asarray(found.number).tolist()) == set(range(wanted))
    np.testing.assert_array_equal(words[found.example[found.number]], words)


def test_rows_that_share_a_hash_are_told_apart(reader, monkeypatch):
    """All of them do: time is lost, nothing else."""
    monkeypatch.setattr(instructions.jnp, "sum", lambda values, **_: jnp.zeros(len(values), jnp.uint32))
    words = some_words(24, 5)
    found = find_distinct_rows(jnp.asarray(words))
    assert len(np.unique(words, axis=0)) < found.count <= len(words)
    np.testing.assert_array_equal(words[found.example[found.number]], words)
    np.testing.assert_allclose(
        encode_distinct_rows(reader, jnp.asarray(words)), reader(jnp.asarray(words)), atol=1e-6
    )


@pytest.mark.parametrize(("rows", "different"), [(3, 2), (70, 3), (70, 1000)])
def test_reading_once_is_reading_all(reader, rows, different):
    """Values and gradients, one part or many."""
    words = jnp.asarray(some_words(rows, different))
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(rows, STATE)), jnp.float32)
    assert count_rows_at_once(70) == 5

    def loss(read):
        return eqx.filter_jit(eqx.filter_value_and_grad(lambda r: jnp.sum(jnp.sin(read(r, words)) * weights)))

    value, gradient = loss(encode_distinct_rows)(reader)
    wanted, wanted_gradient = loss(lambda r, words: r(words))(reader)
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    for mine, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted_gradient), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


def test_seeds_side_by_side(reader):
    """Batches with different numbers of instructions, each with its own reader."""
    readers = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), reader)
    words = jnp.stack([jnp.asarray(some_words(30, 2)), jnp.asarray(some_words(30, 1000))])

    def gradient(read):
        return jax.jit(jax.vmap(jax.grad(lambda r, words: jnp.sum(jnp.sin(read(r, words))))))(readers, words)

    once, every = gradient(encode_distinct_rows), gradient(lambda r, words: r(words))
    for mine, other in zip(jax.tree.leaves(once), jax.tree.leaves(every), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [None, 9])
def test_a_batch_is_its_rows(size):
    encoder, words = Instructions(BUCKETS, size, key=jax.random.key(2)), jnp.asarray(some_words(10, 4))
    batch = encoder.rows(words)
    assert batch.shape == (10, STATE if size is None else size)
    np.testing.assert_allclose(batch, jax.vmap(encoder)(words), rtol=1e-4, atol=1e-6)


def test_instructions_are_heard_at_the_start():
    """About as loud as other parts: of order 1."""
    encoder = Instructions(1000, 64, key=jax.random.key(3))
    texts = np.random.default_rng(0).integers(1, 1000, (64, 5)).astype(np.int32)
    out = np.asarray(encoder.rows(jnp.asarray(texts)))
    assert 0.3 < np.sqrt(np.mean(np.square(out - out.mean(axis=0)))) < 2.0
