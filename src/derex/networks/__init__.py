"""Encoders: from one observation to k numbers."""

from derex.networks.encoders import ENCODERS, MLP, EncoderKind, InputSpec, Linear, Tabular
from derex.networks.images import Conv

__all__ = ["ENCODERS", "MLP", "Conv", "EncoderKind", "InputSpec", "Linear", "Tabular"]
