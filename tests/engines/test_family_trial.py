"""Models of few heads are asked like those of many."""

from transformers import LlamaConfig

from specbench.models.small import HEADS, small_config


def test_a_model_of_fewer_heads_than_a_small_one_keeps_them():
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    small = small_config(LlamaConfig(**heads))
    assert (small.num_attention_heads, small.num_key_value_heads) == (2, 2)
    many = small_config(LlamaConfig(num_attention_heads=32, num_key_value_heads=32))
    assert (many.num_attention_heads, many.num_key_value_heads) == (HEADS, HEADS)
