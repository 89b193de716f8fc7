"""One training step on fake tensors, recorded: acplan.trace.

This room knows _base, _files, _device, _fakes. Start with trace.py, then step.py.

Replaced in PyTorch and DeepSpeed (_base/patching.py says how to read the list):

    torch.utils.checkpoint._checkpoint_without_reentrant_generator, private, up to 2.14
    torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl, private, from 2.15 on
        checkpointing_off.py, without_checkpointing: a checkpoint calls its function and no
        more. The name is replaced in every module that has imported it.
    torch.autograd.Function.apply, in C from 2.14 on
        checkpointing_off.py, without_checkpointing: the same for checkpoints that are functions
        of autograd.
    deepspeed.runtime.activation_checkpointing.checkpointing.non_reentrant_checkpoint
        checkpointing_off.py, without_checkpointing: the same for DeepSpeed's checkpoint by
        hooks on saved tensors, if DeepSpeed has been imported.
    torch.nn.Module._call_impl, private
        module_calls.py, ModuleCalls.watched: calls of modules are recorded with their hooks. It
        is replaced in the class, and in a module or class with a method of its own.
    torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.pre_backward
    torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.unshard
    torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._backward_prefetch
        sharded_calls.py, ShardedCalls.gathering_watched: the trace says which operators gather
        a module's parameters. They are replaced in each group. Private.
    torch.optim.optimizer._foreach_supported_types, private
    torch.utils._foreach_utils._foreach_supported_types, private
        update.py, fakes_as_plain_tensors: optimizers and clipping choose, for fake tensors, the
        implementation that plain tensors get.
    torch._subclasses.fake_tensor.FakeTensor.__deepcopy__, private
        update.py, fakes_as_plain_tensors: a copy has a storage of its own.
    torch.UntypedStorage.resize_
        recorder.py, resizes_noted: the log knows when a program frees the memory of a storage,
        or gives it memory again.
    torch.distributed.distributed_c10d._world, private
        parallel.py, Parallel.group_made: the rank's process groups are apart from those of the
        process.
    torch.distributed.device_mesh.DeviceMesh.device_type
        parallel_already.py, own_groups: the meshes of a model that is parallel already are of
        the device of its fake tensors.
    torch.distributed.pipelining.schedules._batch_p2p, private, from 2.13 on
        pipeline.py, Pipeline.step: sends hold what they send, which the fake process group does
        not.
    torch.distributed.pipelining.schedules._PipelineSchedule._maybe_compute_loss, private
        pipeline.py, Pipeline.step: schedules call it after each forward pass, of which the last
        one ends the forward passes of the trace.
    torch.distributed.tensor._random._rng_tracker, private
        parallel.py, Parallel.group_made: DTensor's random numbers are the rank's own.
    torch.distributed._functional_collectives._are_we_tracing, private, from 2.7 on
        parallel.py, Parallel.group_made: collectives are waited for where training does so. The
        name is replaced in every module of torch.distributed that has imported it.
"""
