"""The properties of a device: its kernels, their run-times and workspaces, a fake CUDA.

This room knows _base. Start with devices.py.

Replaced in PyTorch (_base/patching.py says how to read the list):

    torch.optim.optimizer._foreach_supported_types, private
    torch.utils._foreach_utils._foreach_supported_types, private
        device_operators.py, shapes_of_device_operators: optimizers take fake tensors in lists,
        as they take tensors on the device.
    torch._subclasses.fake_impls.op_implementations_dict, private
        device_operators.py, shapes_of_device_operators: gets entries for operators that have
        kernels and no shapes.
    torch._subclasses.fake_tensor.run_fallback_kernel, private
        device_operators.py, operators_of_cuda: shapes come from the kernels of the CPU. The
        block also registers kernels for CUDA that never run, by torch.library.
    torch.Generator
        fake_cuda.py, fake_cuda: a generator for CUDA is one of the CPU that says that it is for
        CUDA. This and all that follows is replaced if there is no CUDA.
    torch.cuda.is_available
    torch.cuda.device_count
    torch.cuda.current_device
    torch.cuda.set_device
    torch.cuda._exchange_device, private
    torch.cuda._maybe_exchange_device, private
    torch.cuda.get_device_capability
    torch.cuda.get_device_name
    torch.cuda.get_device_properties
    torch.cuda.is_bf16_supported
    torch.version.cuda
    torch.version.hip
    torch.backends.cudnn.is_available
    torch.backends.cudnn.version
        fake_cuda.py, fake_cuda: PyTorch and libraries get the answers of the device named.
    torch.cuda.synchronize
    torch.cuda.is_current_stream_capturing
    torch.cuda.reset_peak_memory_stats
    torch.cuda.reset_accumulated_memory_stats
    torch.cuda.nvtx.range_push
    torch.cuda.nvtx.range_pop
    torch.cuda.nvtx.mark
        fake_cuda.py, fake_cuda: do nothing, where PyTorch would look for a device.
    torch.cuda.get_rng_state
    torch.cuda.set_rng_state
    torch.cuda.get_rng_state_all
    torch.cuda.set_rng_state_all
    torch.cuda.manual_seed
    torch.cuda.manual_seed_all
    torch.cuda.seed
    torch.cuda.seed_all
    torch.cuda.initial_seed
    torch.cuda.random.get_rng_state
    torch.cuda.random.set_rng_state
    torch.cuda.random.get_rng_state_all
    torch.cuda.random.set_rng_state_all
    torch.cuda.random.manual_seed
    torch.cuda.random.manual_seed_all
    torch.cuda.random.seed
    torch.cuda.random.seed_all
    torch.cuda.random.initial_seed
    torch.cuda.default_generators
        fake_cuda.py, fake_cuda: the state of the device's random numbers is that of a generator
        of the CPU, so that a caller reads the state that it has set.
    torch.cuda.amp.common.amp_definitely_not_available
        fake_cuda.py, fake_cuda: without a device, autocast for CUDA would be off, or would
        refuse bfloat16.
    torch.utils.checkpoint.DefaultDeviceType._default_device_type, private
        fake_cuda.py, fake_cuda: an earlier checkpoint on the CPU has noted the CPU here.
    torch.backends.cudnn.is_acceptable
        fake_cuda.py, fake_cuda: weights of recurrent modules would be put into one chunk of
        memory, by addresses that fake tensors do not have.
    torch.cuda.Stream
    torch.cuda.Event
    torch.cuda.stream
    torch.cuda.current_stream
    torch.cuda.default_stream
        fake_streams.py, fake_streams: streams and events have numbers, and nothing waits; what
        would wait is noted. For ranks of parallel models alone, with CUDA as without.
    torch.Tensor.pin_memory
    torch.Tensor.is_pinned
        pinned_fakes.py, pinned_fakes: a fake tensor is pinned without a device, and knows that
        it is. For ranks of parallel models alone.
    torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init, private
    torch._subclasses.fake_tensor.init_gpu_context, private
        fake_cuda.py, fake_cuda: no fake tensor starts the device. Up to 2.11 the second makes a
        real tensor if torch.cuda.is_available() is true, later if C++ says so.
"""
