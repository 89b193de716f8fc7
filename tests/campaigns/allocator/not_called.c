// Functions of the CUDA runtime that PyTorch's libraries link and that the
// campaign never calls: each refuses.

#define REFUSED(name) \
  int name(void) { return 801; }

REFUSED(cudaDeviceCanAccessPeer)
REFUSED(cudaDeviceEnablePeerAccess)
REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaDeviceGetGraphMemAttribute)
REFUSED(cudaDeviceSetGraphMemAttribute)
REFUSED(cudaFreeAsync)
REFUSED(cudaGraphAddEmptyNode)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaGraphNodeGetType)
REFUSED(cudaIpcCloseMemHandle)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaMallocAsync)
REFUSED(cudaMemPoolGetAttribute)
REFUSED(cudaMemPoolSetAccess)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo)
REFUSED(cudaMemcpy)
REFUSED(cudaMemcpyAsync)
REFUSED(cudaMemcpyPeerAsync)
REFUSED(cudaStreamCreateWithPriority)
REFUSED(cudaStreamUpdateCaptureDependencies)
REFUSED(cudaStreamWaitEvent)
