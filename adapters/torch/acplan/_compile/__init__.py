"""acplan as the partitioner of torch.compile, and plans of compiled steps.

This room knows _graphs, _step and what they know. Start with compile.py.

Replaced in PyTorch and transformers (_base/patching.py says how to read the list):

    torch.nn.Module._compiled_call_impl, private
        step_plan.py, Compilation.record: the blocks of a model are compiled in one context
        while a step is recorded.
    torch._inductor.compile_fx.min_cut_rematerialization_partition, private, replaced in 2.8
        step_plan.py, partitioning_by: Inductor takes acplan's partitioner, for which it has an
        option from 2.9 on.
    transformers.utils.import_utils.is_fake_tensor, in the versions that have it
        fake_step.py, _unasked: transformers reads the values of masks although they are fake.
"""
