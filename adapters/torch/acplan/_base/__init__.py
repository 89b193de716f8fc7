"""The code that all rooms use: errors, the program, tensors, operators, parts of objects.

This room knows PyTorch alone. Start with tensors.py and operators.py.

Replaced in PyTorch and Triton (_base/patching.py says how to read the list):

    torch.autograd.graph.disable_saved_tensors_hooks
    torch.autograd.forward_ad.dual_level.__enter__
    torch.autograd.forward_ad.dual_level.__exit__
        transforms.py, without_hooks: no hook on saved tensors is called while a function is
        transformed, and the caller learns that one is.
    torch.nn.functional.one_hot
        stand_ins.py, one_hot_as_in_forward: a stand-in runs the operators of a tensor on a GPU.
    triton.runtime.jit.JITFunction.run
    triton.runtime.autotuner.Autotuner.run
    triton.runtime.autotuner.Heuristics.run
    triton.runtime.interpreter.InterpretedFunction.run
        triton_kernels.py, watch_launches: launches are operators, which modes see. These stay
        replaced until the process ends, and call the originals outside of such modes.
    torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached
        sharding.py, watch_propagation: modes do not see operators that only compute shapes. It
        stays replaced until the process ends.
    torch.distributed.tensor.experimental._context_parallel._attention._templated_ring_attention
        ring_attention.py, watch_ring_attention: modes see ring attention as one operator. It
        stays replaced until the process ends. Private, from 2.9 on; up to 2.8 in
        torch.distributed.tensor.experimental._attention.
"""
