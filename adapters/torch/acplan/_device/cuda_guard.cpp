// Lets a PyTorch without CUDA, or without a CUDA device, run autograd over fake
// CUDA tensors, and answers PyTorch's own questions about the device as the one
// named would: is there cuDNN and which, which attention kernel, which recurrent
// one. All else that PyTorch does above its kernels it then does itself, as on the
// device. No kernel ever runs.

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/RNN.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/miopen_rnn.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <tuple>
#include <vector>

// As in acplan/fake_cuda.py.
extern "C" {

struct AcplanDevice {
  int32_t major;
  int32_t minor;
  int32_t is_rocm;
  int64_t cudnn_version;
};

struct AcplanTensor {
  int32_t is_defined;
  int32_t type;
  int32_t requires_grad;
  int32_t dimensions;
  int64_t offset;
  int64_t sizes[8];
  int64_t strides[8];
};

struct AcplanAttention {
  AcplanTensor query;
  AcplanTensor key;
  AcplanTensor value;
  AcplanTensor mask;
  double dropout;
  int32_t is_causal;
  int32_t enable_gqa;
  int32_t is_grad_enabled;
};

// The value of at::SDPBackend; below 0 if there is none.
using AcplanChooseAttention = int32_t (*)(const AcplanAttention*);
}

namespace {

using at::Tensor;
using at::TensorList;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceIndex kDevice = 0;

struct Answers {
  AcplanDevice device{};
  AcplanChooseAttention choose_attention = nullptr;
};

Answers& TheAnswers() {
  static Answers answers;
  return answers;
}

Device TheDevice() { return {DeviceType::CUDA, kDevice}; }
Stream TheStream() { return Stream(Stream::DEFAULT, TheDevice()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return TheDevice(); }
  Device getDevice() const override { return TheDevice(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return TheStream(); }
  Stream getNewStream(Device, int) const override { return TheStream(); }
  Stream exchangeStream(Stream) const noexcept override { return TheStream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};

// aten/src/ATen/cuda/detail/CUDAHooks.cpp. Those without `override` are not in
// every version of PyTorch.
struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return kDevice; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return kDevice; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override {
    return kDevice;
  }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex current_device() const override { return kDevice; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(DeviceIndex) const override {}
  bool hasROCM() const override { return Is().is_rocm; }
  bool hasCuDNN() const override { return !Is().is_rocm; }
  bool compiledWithCuDNN() const override { return !Is().is_rocm; }
  bool compiledWithMIOpen() const override { return Is().is_rocm; }
  bool supportsDilatedConvolutionWithCuDNN() const override {
    return !Is().is_rocm;
  }
  bool supportsDepthwiseConvolutionWithCuDNN() const override {
    return !Is().is_rocm && Is().major >= 7;
  }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override {
    return !Is().is_rocm && Is().major >= 8;
  }
  bool supportsBFloat16RNNWithCuDNN() const {
    return !Is().is_rocm && Is().major >= 8;
  }
  long versionCuDNN() const override { return Is().cudnn_version; }
  long versionRuntimeCuDNN() const { return Is().cudnn_version; }
  long versionMIOpen() const { return 0; }
  double batchnormMinEpsilonCuDNN() const override { return 0; }

 private:
  static const AcplanDevice& Is() { return TheAnswers().device; }
};

AcplanTensor Describe(const Tensor& tensor) {
  AcplanTensor it{};
  it.is_defined = tensor.defined();
  if (!tensor.defined()) return it;
  it.type = static_cast<int32_t>(tensor.scalar_type());
  it.requires_grad = tensor.requires_grad();
  it.dimensions = static_cast<int32_t>(tensor.dim());
  it.offset = tensor.storage_offset();
  for (size_t d = 0; d < std::size(it.sizes) && d < tensor.sizes().size(); ++d)
    it.sizes[d] = tensor.size(d), it.strides[d] = tensor.stride(d);
  return it;
}

int64_t ChooseAttention(const Tensor& query, const Tensor& key,
                        const Tensor& value, const std::optional<Tensor>& mask,
                        double dropout, bool is_causal, std::optional<double>,
                        bool enable_gqa) {
  if (query.is_nested()) return static_cast<int64_t>(at::SDPBackend::math);
  AcplanAttention call{};
  call.query = Describe(query);
  call.key = Describe(key);
  call.value = Describe(value);
  if (mask) call.mask = Describe(*mask);
  call.dropout = dropout;
  call.is_causal = is_causal;
  call.enable_gqa = enable_gqa;
  call.is_grad_enabled = c10::GradMode::is_enabled();
  const int32_t chosen = TheAnswers().choose_attention(&call);
  TORCH_CHECK(chosen >= 0, "No available kernel. Aborting execution.");
  return chosen;
}

// cudnnRNNMode_t, and aten/src/ATen/native/cudnn/RNN.cpp for what follows.
enum class Mode { kRelu, kTanh, kLstm, kGru };

struct RnnOptions {
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train;
  bool is_bidirectional;
  bool is_batch_first;
};

std::tuple<Tensor, Tensor, Tensor> RunRnn(Mode mode, const Tensor& input,
                                          const Tensor& hx, const Tensor& cx,
                                          TensorList weights,
                                          const std::vector<int64_t>& sizes,
                                          const RnnOptions& with) {
  const bool is_projected = cx.defined() && cx.size(2) != hx.size(2);
  const int64_t hidden = cx.defined() ? cx.size(2) : hx.size(2);
  const auto cell = cx.defined() ? std::optional(cx) : std::nullopt;
  const int64_t each = (with.has_biases ? 4 : 2) + (is_projected ? 1 : 0);
  if (TheAnswers().device.is_rocm) {
    auto results =
        at::miopen_rnn(input, weights, each, hx, cell, static_cast<int>(mode),
                       hidden, with.layers, with.is_batch_first, with.dropout,
                       with.train, with.is_bidirectional, sizes, std::nullopt);
    return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
  }
  // On the device modules keep their weights as one chunk of memory, which is
  // passed beside them and returned. The first weight's stands for it.
  const Tensor chunk =
      at::empty({0}, weights[0].options()).set_(weights[0].storage());
  auto results = at::_cudnn_rnn(
      input, weights, each, chunk, hx, cell, static_cast<int>(mode), hidden,
      is_projected ? hx.size(2) : 0, with.layers, with.is_batch_first,
      with.dropout, with.train, with.is_bidirectional, sizes, std::nullopt);
  return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

// They lie on the CPU. Fake ones have their values where the tracer knows them.
std::vector<int64_t> ValuesOf(const Tensor& sizes) {
  std::vector<int64_t> values;
  const bool is_real = !sizes.key_set().has(c10::DispatchKey::Python);
  for (int64_t i = 0; i < sizes.size(0); ++i)
    values.push_back(is_real ? sizes.const_data_ptr<int64_t>()[i]
                             : sizes.select(0, i).item<int64_t>());
  return values;
}

template <Mode mode>
void Rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& hx,
         TensorList weights, bool has_biases, int64_t layers, double dropout,
         bool train, bool is_bidirectional, bool is_batch_first) {
  std::tie(output, hy, std::ignore) = RunRnn(
      mode, input, hx, {}, weights, {},
      {has_biases, layers, dropout, train, is_bidirectional, is_batch_first});
}

template <Mode mode>
void PackedRnn(Tensor& output, Tensor& hy, const Tensor& input,
               const Tensor& sizes, const Tensor& hx, TensorList weights,
               bool has_biases, int64_t layers, double dropout, bool train,
               bool is_bidirectional) {
  std::tie(output, hy, std::ignore) =
      RunRnn(mode, input, hx, {}, weights, ValuesOf(sizes),
             {has_biases, layers, dropout, train, is_bidirectional, false});
}

void Lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input,
          TensorList states, TensorList weights, bool has_biases,
          int64_t layers, double dropout, bool train, bool is_bidirectional,
          bool is_batch_first) {
  std::tie(output, hy, cy) = RunRnn(
      Mode::kLstm, input, states[0], states[1], weights, {},
      {has_biases, layers, dropout, train, is_bidirectional, is_batch_first});
}

void PackedLstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input,
                const Tensor& sizes, TensorList states, TensorList weights,
                bool has_biases, int64_t layers, double dropout, bool train,
                bool is_bidirectional) {
  std::tie(output, hy, cy) =
      RunRnn(Mode::kLstm, input, states[0], states[1], weights, ValuesOf(sizes),
             {has_biases, layers, dropout, train, is_bidirectional, false});
}

// A place in PyTorch's memory that is written over for a while. Those here hold
// pointers alone.
class Replaced {
 public:
  template <typename T>
  explicit Replaced(T& at) : at_(&at), before_(sizeof(T)) {
    std::memcpy(before_.data(), at_, before_.size());
  }
  void Restore() const { std::memcpy(at_, before_.data(), before_.size()); }

 private:
  void* at_;
  std::vector<std::byte> before_;
};

struct Original {
  const c10::impl::DeviceGuardImplInterface* guard = nullptr;
  std::vector<Replaced> replaced;
};

Original& TheOriginal() {
  static Original original;
  return original;
}

auto& GuardEntry() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(
      DeviceType::CUDA)];
}

template <typename Stub, typename Kernel>
void Answer(Stub& stub, Kernel kernel) {
  TheOriginal().replaced.emplace_back(stub);
  stub.set_cuda_dispatch_ptr(kernel);
}

void AnswerStubs() {
  using namespace at::native;
  Answer(_fused_sdp_choice_stub, &ChooseAttention);
  Answer(lstm_cudnn_stub, &Lstm);
  Answer(lstm_miopen_stub, &Lstm);
  Answer(lstm_packed_cudnn_stub, &PackedLstm);
  Answer(lstm_packed_miopen_stub, &PackedLstm);
  Answer(gru_cudnn_stub, &Rnn<Mode::kGru>);
  Answer(gru_miopen_stub, &Rnn<Mode::kGru>);
  Answer(gru_packed_cudnn_stub, &PackedRnn<Mode::kGru>);
  Answer(gru_packed_miopen_stub, &PackedRnn<Mode::kGru>);
  Answer(rnn_tanh_cudnn_stub, &Rnn<Mode::kTanh>);
  Answer(rnn_tanh_miopen_stub, &Rnn<Mode::kTanh>);
  Answer(rnn_tanh_packed_cudnn_stub, &PackedRnn<Mode::kTanh>);
  Answer(rnn_tanh_packed_miopen_stub, &PackedRnn<Mode::kTanh>);
  Answer(rnn_relu_cudnn_stub, &Rnn<Mode::kRelu>);
  Answer(rnn_relu_miopen_stub, &Rnn<Mode::kRelu>);
  Answer(rnn_relu_packed_cudnn_stub, &PackedRnn<Mode::kRelu>);
  Answer(rnn_relu_packed_miopen_stub, &PackedRnn<Mode::kRelu>);
}

// PyTorch looks its hooks up once and keeps them, usually while it is imported,
// so they are replaced where they lie. They have no state at that place but
// their type.
at::CUDAHooksInterface& TheHooks() {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  return const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
}

}  // namespace

// Called from Python, in turns.
extern "C" void acplan_install_cuda_guard(const AcplanDevice* device,
                                          AcplanChooseAttention choose) {
  static const Guard guard;
  TheAnswers() = {*device, choose};
  TheOriginal().guard = GuardEntry().exchange(&guard);
  TheOriginal().replaced.emplace_back(TheHooks());
  new (&TheHooks()) Hooks;
  AnswerStubs();
}

extern "C" void acplan_remove_cuda_guard() {
  for (const Replaced& place : TheOriginal().replaced) place.Restore();
  TheOriginal().replaced.clear();
  GuardEntry().store(TheOriginal().guard);
}
