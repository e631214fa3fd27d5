"""Models for the data sets that come along. Any other ``torch.nn.Module`` without buffers will do as well."""

from hubbub.models.images import CifarCnn, Cnn, Mlp
from hubbub.models.text import CharLstm, CharTransformer

__all__ = ["CharLstm", "CharTransformer", "CifarCnn", "Cnn", "Mlp"]
