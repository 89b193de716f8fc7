"""Advice on a step's memory: acplan.explain, acplan.what_fits, acplan.best_batch, the levers.

This room knows _step, _program and what they know. Start with explain.py,
or with what_fits.py for settings that fit a card.

Replaced in PyTorch and transformers (_base/patching.py says how to read the list):

    torch.nn.Linear.forward
        levers.py, _fused_loss: the model's output layer returns its input.
    transformers.PreTrainedModel._loss_function, private
        levers.py, _fused_loss: the loss of a causal model computes the output layer, too.
    torch.nn.functional.cross_entropy
        levers.py, _fused_loss: so does a loss that is a cross entropy.
"""
