"""The code that trainers share: a step as a trainer runs it, planned once for all ranks.

This room knows _apply, _step, _program, _verify. Start with trainer_step.py.

Replaced in PyTorch and torchtitan (_base/patching.py says how to read the list):

    torch.distributed.pipelining.PipelineStage, in torchtitan.distributed.pipeline_parallel
        titan_pipeline.py, TitanPipeline._split: stages know the shapes of what they receive.
    torch.nn.Module.forward
        trainer_step.py, autocast_forward: the model runs under autocast and returns float32.
"""
