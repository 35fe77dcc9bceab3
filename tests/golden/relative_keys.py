"""Gives Transformers' classifiers BERT's relative positions, "relative_key" and "relative_key_query".

Transformers itself lacks them since version 5. The scores are those of Shaw et al. 2018 (arXiv:1803.02155), equation 5, and
of Huang et al. 2020 (arXiv:2009.13658), method 4. With the table D of 2P - 1 distances, P = max_position_embeddings, and
r = i - j + P - 1 for query i and key j:
  relative_key         (q_i . k_j + q_i . D[r]) / sqrt(d)
  relative_key_query   (q_i . k_j + q_i . D[r] + k_j . D[r]) / sqrt(d)
The embeddings then add no positions.
"""
import math

import torch
from torch import nn


class NoPositions(nn.Embedding):
    """The position table, which is stored in checkpoints but not read."""

    def forward(self, ids):
        return torch.zeros(*ids.shape, self.embedding_dim, dtype=self.weight.dtype)


def attend(attention, config, x, mask):
    """Returns the context [B, S, H] for the hidden states x [B, S, H]."""
    b, s, h = x.shape
    heads = config.num_attention_heads
    q, k, v = (linear(x).view(b, s, heads, h // heads) for linear in (attention.query, attention.key, attention.value))
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    place = torch.arange(s)
    distances = attention.distance_embedding.weight[place[:, None] - place[None, :] + config.max_position_embeddings - 1]
    scores = scores + torch.einsum("bihd,ijd->bhij", q, distances)
    if config.position_embedding_type == "relative_key_query":
        scores = scores + torch.einsum("bjhd,ijd->bhij", k, distances)
    scores = scores / math.sqrt(h // heads)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(b, s, h)


def use_relative_keys(model):
    """Changes the model according to its config's position_embedding_type. Call it before values are drawn."""
    config = model.config
    if getattr(config, "position_embedding_type", "absolute") == "absolute":
        return
    for module in list(model.modules()):
        if hasattr(module, "position_embeddings"):
            old = module.position_embeddings
            module.position_embeddings = NoPositions(old.num_embeddings, old.embedding_dim)
        if not (hasattr(module, "query") and hasattr(module, "key") and hasattr(module, "value")):
            continue
        module.distance_embedding = nn.Embedding(2 * config.max_position_embeddings - 1,
                                                 config.hidden_size // config.num_attention_heads)
        nn.init.normal_(module.distance_embedding.weight, std=config.initializer_range)

        def forward(hidden_states, attention_mask=None, *, module=module, **_):
            context = attend(module, config, hidden_states, attention_mask)
            if hasattr(module, "dense"):  # ALBERT's module has the output projection and the norm, too
                context = module.LayerNorm(hidden_states + module.dense(context))
            return context, None

        module.forward = forward
