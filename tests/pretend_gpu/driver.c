/* CUDA's driver beside runtime.cpp: the calls that torch and the loader make themselves.
 *
 * Built as libcuda.so.1. Streams and capture modes are the runtime's. A context is the number of its
 * device, counted from 1, and each thread has a stack of them.
 */

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

enum { DEEPEST = 16 };
static _Thread_local CUcontext contexts[DEEPEST];
static _Thread_local int depth = 0;

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (ordinal < 0 || ordinal >= count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

/* Contexts. */

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)(intptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (context == NULL || depth == DEEPEST) return CUDA_ERROR_INVALID_CONTEXT;
  contexts[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts[--depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = depth == 0 ? NULL : contexts[depth - 1];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (depth == 0) return cuCtxPushCurrent(context);
  contexts[depth - 1] = context;
  return CUDA_SUCCESS;
}

/* Streams. */

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  int before = 0;
  CUresult result;
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  cudaGetDevice(&before);
  cudaSetDevice((int)(intptr_t)contexts[depth - 1] - 1);
  result = (CUresult)cudaStreamCreateWithFlags(stream, flags);
  cudaSetDevice(before);
  return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return (CUresult)cudaThreadExchangeStreamCaptureMode((enum cudaStreamCaptureMode*)mode);
}

/* Calls that torch links to, and that fail. */

CUresult pretend_gpu_has_no_such_call(void) { return CUDA_ERROR_NOT_SUPPORTED; }

#define MISSING(name)             \
  __asm__(".globl " #name "\n"    \
          ".type " #name ", @function\n" \
          ".set " #name ", pretend_gpu_has_no_such_call")

MISSING(cuFuncGetAttribute);
MISSING(cuFuncSetAttribute);
MISSING(cuFuncSetCacheConfig);
MISSING(cuGetErrorString);
MISSING(cuLaunchCooperativeKernel);
MISSING(cuLaunchKernel);
MISSING(cuLinkAddData_v2);
MISSING(cuLinkComplete);
MISSING(cuLinkCreate_v2);
MISSING(cuModuleGetFunction);
MISSING(cuModuleLoad);
MISSING(cuModuleLoadData);
MISSING(cuModuleLoadDataEx);
MISSING(cuModuleUnload);
MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor);
MISSING(cuPointerGetAttribute);
MISSING(cuTensorMapEncodeTiled);
