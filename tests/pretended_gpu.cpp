
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> {
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {c10::kCUDA, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {c10::kCUDA, 0}); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, {c10::kCUDA, 0}); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, {c10::kCUDA, 0}); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {c10::kCUDA, 0}); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
static const Guard guard;
static const c10::impl::DeviceGuardImplRegistrar registered(c10::kCUDA, &guard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

using at::CUDAHooksRegistry;
namespace at { C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::CUDAHooks) }
