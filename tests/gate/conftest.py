from tests.steady_cells import steady as steady
