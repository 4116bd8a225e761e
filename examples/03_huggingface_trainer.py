"""Hugging Face Trainer with a plan: one callback, and gradient checkpointing stays off."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import trainfit
from trainfit.huggingface import PlanCallback

# A plan is made for a GPU's kernels. A CPU has others for dropout and fused attention: there, blocks that use them are
# checkpointed as a whole, with a warning. On a GPU leave these out.
for_a_cpu = {"attn_implementation": "eager"} | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
config = GPT2Config(n_embd=128, n_layer=4, n_head=4, n_positions=64, vocab_size=1024, use_cache=False, **for_a_cpu)
tokens = torch.randint(config.vocab_size, (16, 64), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": row, "labels": row} for row in tokens]

# The step as the Trainer runs it: its batch, its optimizer.
batch = {name: torch.empty(4, 64, dtype=torch.int64, device="meta") for name in ("input_ids", "labels")}
step = trainfit.Step(model=lambda: GPT2LMHeadModel(config), batch=batch)
plan = trainfit.plan(step, gpu="h200", budget="min", memory="allocated")
print(plan)


def train(callbacks: list[PlanCallback]) -> float:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=callbacks)
        return trainer.train().training_loss


callback = PlanCallback(plan)
plain, planned = train([]), train([callback])
assert plain == planned  # to the last bit
assert callback.handle is not None
assert all(block.replays == 4 and block.reruns == 0 for block in callback.handle.stats())
print(f"training loss without the plan {plain:.4f}, with it {planned:.4f}")
