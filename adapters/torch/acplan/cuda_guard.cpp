// Lets a PyTorch without CUDA, or without a CUDA device, run autograd over fake
// CUDA tensors: a device guard and hooks for CUDA that do nothing and claim one
// device. Without them autograd aborts. No kernel ever runs.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <cstring>
#include <new>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceIndex kDevice = 0;

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

struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  // Without `override`, as PyTorch 2.6 does not have them.
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
};

// What PyTorch had before: no guard and the hooks of the interface where it was
// built without CUDA, else those of its CUDA library.
struct Original {
  const c10::impl::DeviceGuardImplInterface* guard;
  std::byte hooks[sizeof(at::CUDAHooksInterface)];
};

auto& GuardEntry() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(
      DeviceType::CUDA)];
}

// PyTorch looks its hooks up once and keeps them, usually while it is imported,
// so they are replaced where they lie. They have no state at that place but
// their type.
void* TheHooks() {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
}

Original& TheOriginal() {
  static Original original;
  return original;
}

}  // namespace

// Called from Python, in turns.
extern "C" void acplan_install_cuda_guard() {
  static const Guard guard;
  TheOriginal().guard = GuardEntry().exchange(&guard);
  std::memcpy(TheOriginal().hooks, TheHooks(), sizeof(TheOriginal().hooks));
  new (TheHooks()) Hooks;
}

extern "C" void acplan_remove_cuda_guard() {
  std::memcpy(TheHooks(), TheOriginal().hooks, sizeof(TheOriginal().hooks));
  GuardEntry().store(TheOriginal().guard);
}
