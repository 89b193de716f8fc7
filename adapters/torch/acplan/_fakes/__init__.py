"""Fake tensors, their values if they are known, and state that is restored after a traced step.

This room knows _base, _files, _device. Start with known_values.py.

Replaced in PyTorch and Python (_base/patching.py says how to read the list):

    torch._subclasses.fake_tensor.FakeTensor.__new__, private
    torch._subclasses.fake_tensor.FakeTensor.__torch_dispatch__, private
        plain_fakes.py, plain_fakes: fake tensors have no dispatch of their own, so that
        autograd takes them for plain ones. The second is replaced while a tensor is made.
    torch.nn.Module._apply, private
        plain_fakes.py, plain_fakes: a module of fake tensors is moved like one of plain ones.
    torch._subclasses.fake_tensor.FakeTensor.data, private
    torch._subclasses.fake_tensor.FakeTensor.tolist, private
    torch._subclasses.fake_tensor.FakeTensor.numpy, private
    torch._subclasses.fake_tensor.FakeTensor.__array__, private
    torch._subclasses.fake_tensor.FakeTensor.__format__, private
        value_readers.py, as_in_training: a fake tensor with a value returns the value.
    torch._subclasses.FakeTensor, private
        value_readers.py, as_in_training: libraries that ask whether a tensor is fake learn that
        it is not.
    torch._subclasses.fake_tensor.log.disabled, private
        value_readers.py, as_in_training: an operator without a fake is an error that is raised,
        and not logged besides.
    torch._VF._pad_packed_sequence, private
        value_readers.py, as_in_training: PyTorch's own function writes lengths to memory that a
        fake tensor does not have.
    torch.ctc_loss
        value_readers.py, as_in_training: lengths are tensors on the device. PyTorch has no form
        for fake tensors that takes others.
    torch.cuda.synchronize
        assumed_values.py, Assumed.answering: optimizers wait for their kernels. It is replaced
        if there is no CUDA.
    torch._subclasses.fake_tensor.FakeTensor.item, private
    torch._subclasses.fake_tensor.FakeTensor.__float__, private
    torch._subclasses.fake_tensor.FakeTensor.__int__, private
    torch._subclasses.fake_tensor.FakeTensor.__index__, private
    torch._subclasses.fake_tensor.FakeTensor.__bool__, private
    torch._subclasses.fake_tensor.FakeTensor.is_nonzero, private
    torch._subclasses.fake_tensor.FakeTensor.equal, private
    torch._subclasses.fake_tensor.FakeTensor.allclose, private
    torch.equal
    torch.allclose
        number_functions.py, following: the number of a tensor without a value is an unknown
        number, and the step goes on.
    torch._subclasses.fake_tensor.FakeTensor.__getitem__, private
        followed_numbers.py, Following.replace_functions: an unknown number may be an index.
        This and all that follows is replaced from the first unknown number to the end of the
        trace.
    math.*
    json.JSONEncoder.default
        followed_numbers.py, Following.replace_functions: functions of Python take unknown
        numbers. So do float, int, bool, max and min, by names in the modules that call them.
    torch._subclasses.fake_tensor.FakeTensor.to, private
    torch._subclasses.fake_tensor.FakeTensor.type, private
    torch._subclasses.fake_tensor.FakeTensor.sum, private
    torch._subclasses.fake_tensor.FakeTensor.mean, private
    torch._subclasses.fake_tensor.FakeTensor.prod, private
    torch._subclasses.fake_tensor.FakeTensor.cumsum, private
    torch._subclasses.fake_tensor.FakeTensor.softmax, private
    torch._subclasses.fake_tensor.FakeTensor.log_softmax, private
    torch._subclasses.fake_tensor.FakeTensor.new_*, private
    torch.zeros
    torch.ones
    torch.full
    torch.empty
    torch.*_like
    torch.sum
    torch.mean
    torch.prod
    torch.cumsum
    torch.softmax
    torch.log_softmax
    torch.tensor
    torch.as_tensor
    torch.arange
        followed_numbers.py, Following: the classes that stand for float, int and bool are data
        types, as those are. `*` stands for zeros, ones, full and empty.
"""
