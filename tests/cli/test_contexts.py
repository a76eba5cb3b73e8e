"""--prompt-tokens as people type it."""

import pytest

from specbench.errors import UsageError
from specbench.settings.words import parse_contexts


@pytest.mark.parametrize(
    ("text", "contexts"),
    [
        ("512", (512,)),
        ("4k", (4096,)),
        ("512,4k,32k", (512, 4096, 32768)),
        ("32K, 512 ,4096,4k", (512, 4096, 32768)),
        ("1,1024k", (1, 1_048_576)),
    ],
)
def test_contexts_are_sorted_token_counts(text, contexts):
    assert parse_contexts(text) == contexts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--prompt-tokens '': expected tokens such as 512 or 512,4k,32k"),
        ("long", "--prompt-tokens 'long': expected tokens"),
        ("-4k", "--prompt-tokens '-4k': expected tokens"),
        ("1.5k", "--prompt-tokens '1.5k': expected tokens"),
        ("512,,4k", "--prompt-tokens '512,,4k': expected tokens"),
        ("4m", "--prompt-tokens '4m': expected tokens"),
        ("512..4k", "--prompt-tokens '512..4k': expected tokens"),
        ("0", "--prompt-tokens '0': 1 to 1024k tokens are allowed"),
        ("512,0k", "--prompt-tokens '512,0k': 1 to 1024k tokens are allowed"),
        ("1025k", "--prompt-tokens '1025k': 1 to 1024k tokens are allowed"),
    ],
)
def test_a_malformed_context_is_refused_with_an_example(text, says):
    with pytest.raises(UsageError) as wrong:
        parse_contexts(text)
    assert str(wrong.value).startswith(says)
