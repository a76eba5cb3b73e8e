"""Attention of new tokens over the slots of the KV cache: masks and implementations.

Input: queries and slots. Output: the input of the output projection. Each implementation is a
class in `implementations.py`; open that first. transformers' own modeling code calls `stock.py`.
"""
