"""One benchmark from start to end: plan, warm up, interleave, save after every block."""
