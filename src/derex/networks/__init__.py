"""Encoders: from one observation to k numbers."""

from derex.networks.conv import Conv
from derex.networks.encoders import ENCODERS, MLP, EncoderKind, InputSpec, Linear, Tabular

__all__ = ["ENCODERS", "MLP", "Conv", "EncoderKind", "InputSpec", "Linear", "Tabular"]
