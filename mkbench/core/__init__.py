"""Pure Python: what is asked, what is expected, and what was measured. Never imports a GPU or MPI package."""
