"""Train with the Trainer of Hugging Face in a folder, from its last checkpoint on; with "kill" rank 1 is killed in step 5."""

import os
import signal
import sys
from pathlib import Path

import mpidec

net = mpidec.Network(hide_launcher=True)

import transformers  # noqa: E402
from helpers.bert import DATA, bert  # noqa: E402
from helpers.trainers import bits  # noqa: E402

from mpidec.integrations.transformers import DecentralizedTrainer  # noqa: E402


class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if "kill" in sys.argv and (state.global_step, net.rank) == (5, 1):
            os.kill(os.getpid(), signal.SIGKILL)


transformers.logging.set_verbosity_error()
args = transformers.TrainingArguments(
    sys.argv[1],
    per_device_train_batch_size=4,
    max_steps=8,
    learning_rate=0.01,
    save_steps=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
model = bert()
trainer = DecentralizedTrainer(
    model,
    args,
    train_dataset=DATA,
    callbacks=[Kill()],
    net=net,
    topology="ring",
    algorithm="gradient_tracking",
)
resume = bool([*Path(sys.argv[1]).glob("worker-0/checkpoint-*")])
if resume and net.rank == 0:
    print("continued")
trainer.train(resume_from_checkpoint=resume)
sys.stdout.write(f"bits of {net.rank}: {bits(model)}\n")
