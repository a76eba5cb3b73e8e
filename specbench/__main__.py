"""`python -m specbench`."""

from specbench.cli import main

main()
