"""Words as numbers: values that must never change, since trained agents depend on them."""

import subprocess
import sys

import numpy as np
import pytest

from derex.envs.suites.common import encode, number_of, words_of
from derex.types import Words


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Go to the RED ball!", [145, 379, 274, 346, 783, 0, 0, 0]),
        ("  go\tto the\n«red» ball…", [145, 379, 274, 346, 783, 0, 0, 0]),
        ("pick up the grey key, then open the door", [859, 809, 274, 978, 2, 939, 755, 274]),
        ("naïve «x» -- 3.5 don't", [316, 523, 724, 914, 0, 0, 0, 0]),
        ("", [0] * 8),
        (" ... !", [0] * 8),
        (b"go to the red ball\0\0\0", [145, 379, 274, 346, 783, 0, 0, 0]),
    ],
)
def test_numbers_that_never_change(text: str | bytes, numbers: list[int]) -> None:
    out = encode(text, Words(8))
    assert out.dtype == np.int32
    assert out.tolist() == numbers


def test_they_do_not_depend_on_the_process() -> None:
    code = "from derex.envs.suites.common import number_of; print(number_of('ball', 1000))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "783"


def test_buckets_and_length() -> None:
    assert encode("go to the red ball", Words(4, 50)).tolist() == [15, 31, 18, 30]
    assert encode("any word at all", Words(4, 2)).tolist() == [1, 1, 1, 1]
    numbers = [number_of(f"word{i}", 1000) for i in range(5000)]
    assert (min(numbers), max(numbers)) == (1, 999)
    assert len(set(numbers)) > 980  # 5 000 thrown into 999 leave some 7 empty


def test_words_are_bare_and_in_lower_case() -> None:
    assert words_of('"Put" the ÄPFEL, (next to) it.') == ["put", "the", "äpfel", "next", "to", "it"]


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(Exception, match="text"):  # the type check of the tests may come first
        encode(7, Words())  # pyrefly: ignore
    with pytest.raises(
        ValueError, match="words: expected a length of at least 1 and 2 buckets or more, got 0"
    ):
        encode("go", Words(0))
    with pytest.raises(ValueError, match="got 4 and 1"):
        encode("go", Words(4, 1))
