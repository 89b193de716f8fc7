// A stand-in for NVML, which PyTorch asks for other processes' memory when it
// writes an out-of-memory message.

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  (void)id;
  *device = (void*)1;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
// No process runs on the device.
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count) {
  (void)device;
  *count = 0;
  return 0;
}
// The device is in no fabric: the caller has cleared what it passes.
int nvmlDeviceGetGpuFabricInfoV(void) { return 0; }
const char* nvmlErrorString(int error) {
  (void)error;
  return "stand-in";
}

#define REFUSED(name) \
  int name(void) { return 3; }

REFUSED(nvmlDeviceGetNvLinkRemoteDeviceType)
REFUSED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
REFUSED(nvmlDeviceGetGpuFabricInfo)
