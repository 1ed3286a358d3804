"""Attention matrices as Markov chains: pure functions, batched over leading dimensions."""
