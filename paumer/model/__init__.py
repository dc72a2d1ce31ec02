"""The network: a ViT walked from outside, its decoders, and their files."""
