"""Words as numbers: by a hash that never changes, so that an agent reads the same tomorrow and elsewhere."""

import string
import zlib

import numpy as np
from jaxtyping import Int32

from derex.types import Words

SMALLEST_VOCABULARY = 2  # 0, which is no word, and one bucket
PUNCTUATION = string.punctuation + "“”‘’«»…–—"


def words_of(text: str) -> list[str]:
    """Parted at blanks, in lower case, without punctuation at either end; what is nothing else is left out."""
    bare = (word.strip(PUNCTUATION) for word in text.lower().split())
    return [word for word in bare if word]


def number_of(word: str, buckets: int) -> int:
    """A number from 1 to buckets − 1 (crc32); different words may share one."""
    return 1 + zlib.crc32(word.encode()) % (buckets - 1)


def encode(text: str | bytes, words: Words) -> Int32[np.ndarray, " length"]:
    """The instruction as `words` declares it: a number for each word, cut at its length, 0 after the last.

    Args:
        text: bytes are read as UTF-8, up to the first zero byte.
        words: what the environment's spec has.
    """
    if not isinstance(text, str | bytes):
        raise TypeError(f"text: expected a string or bytes, got {type(text).__name__}.")
    if words.length < 1 or words.buckets < SMALLEST_VOCABULARY:
        raise ValueError(
            f"words: expected a length of at least 1 and {SMALLEST_VOCABULARY} buckets or more, got {words.length} "
            f"and {words.buckets}."
        )
    if isinstance(text, bytes):
        text = text.split(b"\0", 1)[0].decode(errors="replace")
    out = np.zeros(words.length, np.int32)
    numbers = [number_of(word, words.buckets) for word in words_of(text)[: words.length]]
    out[: len(numbers)] = numbers
    return out
