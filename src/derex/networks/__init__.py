"""Encoders: from one observation to k numbers."""

from derex.networks.encoders import ENCODERS, MLP, Conv, EncoderKind, InputSpec, Linear, Tabular

__all__ = ["ENCODERS", "MLP", "Conv", "EncoderKind", "InputSpec", "Linear", "Tabular"]
