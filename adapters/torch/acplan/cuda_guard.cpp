// Lets a CPU-only PyTorch run autograd over fake CUDA tensors: a device guard
// and hooks for CUDA that do nothing and claim one device. Without them autograd
// aborts. No kernel ever runs.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <new>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceIndex kDevice = 0;

Device TheDevice() { return {DeviceType::CUDA, kDevice}; }
Stream TheStream() { return Stream(Stream::DEFAULT, TheDevice()); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return TheDevice(); }
  Device getDevice() const override { return TheDevice(); }
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

struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
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
};

// PyTorch looks its hooks up once and keeps them, usually while it is imported,
// so they are replaced where they lie.
template <typename T>
void ReplaceHooks() {
  static_assert(sizeof(T) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) T;
}

void ReplaceGuard(const c10::impl::DeviceGuardImplInterface* guard) {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)]
      .store(guard);
}

}  // namespace

// Called from Python.
extern "C" void acplan_install_cuda_guard() {
  static const Guard guard;
  ReplaceGuard(&guard);
  ReplaceHooks<Hooks>();
}

extern "C" void acplan_remove_cuda_guard() {
  ReplaceHooks<at::CUDAHooksInterface>();
  ReplaceGuard(nullptr);
}
