"""The code that trainers share: a step as a trainer runs it, planned once for all ranks.

This room knows _apply, _step, _program, _verify. Start with trainer_step.py.

Replaced in PyTorch (_base/patching.py says how to read the list):

    torch.nn.Module.forward
        trainer_step.py, autocast_forward: the model runs under autocast and returns float32.
"""
