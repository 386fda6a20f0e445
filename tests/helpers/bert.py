"""A BERT small enough for tests, and its data."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# The folder tests/datasets can be imported under the name of the package that is asked for.
transformers.trainer.is_datasets_available = lambda: False

IDS = torch.randint(50, (48, 8), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": row, "labels": int(row[0] > 25)} for row in IDS]


def bert(seed: int = 0, dropout: float = 0.1) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertForSequenceClassification(config)
    model.accepts_loss_kwargs = False  # its loss is the mean over a batch, not over all of a step
    return model
