"""Train with Lightning in a folder, from its last checkpoint on; with "kill" rank 1 is killed in the third epoch."""

import logging
import os
import signal
import sys
from pathlib import Path

import lightning as L
import torch
from helpers.trainers import DATA, bits, model

from mpidec.integrations.lightning import DecentralizedStrategy

folder, kill = Path(sys.argv[1]).resolve(), "kill" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model()

    def training_step(self, batch, i):
        if kill and (self.current_epoch, i, self.global_rank) == (2, 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


L.seed_everything(1)
strategy = DecentralizedStrategy("ring", "gradient_tracking")
module, last = Module(), folder / "last.ckpt"
if strategy.broadcast(last.exists()) and strategy.is_global_zero:
    print("continued")
trainer = L.Trainer(
    max_epochs=4,
    strategy=strategy,
    callbacks=[L.pytorch.callbacks.ModelCheckpoint(folder, save_last=True)],
    default_root_dir=folder,
    accelerator="cpu",
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=1,
)
trainer.fit(
    module, torch.utils.data.DataLoader(DATA, 4, shuffle=True), ckpt_path=strategy.broadcast("last")
)
sys.stdout.write(f"bits of {trainer.global_rank}: {bits(module)}\n")
