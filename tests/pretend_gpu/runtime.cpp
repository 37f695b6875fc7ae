// The CUDA runtime on a CPU: streams, events and memory are real, kernels do nothing.
//
// Preloaded, its functions take the place of libcudart's, so torch's own allocators, streams and
// events run on them. Every stream is a thread that does its work in order, each piece late by a
// random time. Device memory is ordinary memory: the host can write it, as JPEG engines do.
//
// Faults of order and lifetime therefore show as wrong bytes: memory that is reused while queued
// work still reads it, or a batch that is read before it is written.
//
// Environment:
//   PRETEND_GPU_COUNT       number of devices (1)
//   PRETEND_GPU_MEGABYTES   memory of each device (2048)
//   PRETEND_GPU_LATENESS    largest delay of a piece of work, in microseconds (1000)

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Lock = std::unique_lock<std::mutex>;

long setting(const char* name, long usual) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : usual;
}

// A point in a stream's queue that can be waited for.
class Point {
 public:
  explicit Point(bool is_reached) : is_reached_(is_reached) {}

  void reach() {
    Lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
  }

  void wait() {
    Lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }

  bool is_reached() {
    Lock lock(mutex_);
    return is_reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_;
};

// A thread that does queued work in order, and late.
class Stream {
 public:
  Stream(int device, unsigned number, long lateness)
      : device(device), delays_(number), lateness_(lateness) {
    std::thread([this] { serve(); }).detach();
  }

  void queue(std::function<void()> work) {
    Lock lock(mutex_);
    queue_.push_back(std::move(work));
    num_queued_++;
    changed_.notify_all();
  }

  // Waits for the work that is queued now, and not for what other threads queue meanwhile.
  void wait() {
    Lock lock(mutex_);
    changed_.wait(lock, [this, until = num_queued_] { return num_done_ >= until; });
  }

  bool is_idle() {
    Lock lock(mutex_);
    return num_done_ == num_queued_;
  }

  const int device;

 private:
  void serve() {
    for (Lock lock(mutex_);;) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delays_() % lateness_));
      work();
      work = nullptr;
      lock.lock();
      num_done_++;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  unsigned long num_queued_ = 0;
  unsigned long num_done_ = 0;
  std::mt19937 delays_;
  const long lateness_;
};

struct Event {
  explicit Event(int device) : device(device) {}

  std::shared_ptr<Point> point() {
    Lock lock(mutex);
    return last;
  }

  const int device;
  std::mutex mutex;
  std::shared_ptr<Point> last = std::make_shared<Point>(true);
};

// A piece of memory that was allocated: of a device, or page-locked on the host.
struct Piece {
  size_t num_bytes;
  int device;  // -1: on the host
};

// All devices and their memory. It is never destroyed, as the streams' threads use it to the end.
class Machine {
 public:
  Machine()
      : owner(getpid()),
        num_devices(static_cast<int>(setting("PRETEND_GPU_COUNT", 1))),
        memory(static_cast<size_t>(setting("PRETEND_GPU_MEGABYTES", 2048)) << 20),
        lateness_(setting("PRETEND_GPU_LATENESS", 1000) + 1),
        used_(num_devices) {
    for (int device = 0; device < num_devices; device++) default_streams_.push_back(add(device));
  }

  Stream* add(int device) {
    Lock lock(mutex_);
    auto* stream = new Stream(device, static_cast<unsigned>(streams_.size()), lateness_);
    streams_.insert(stream);
    return stream;
  }

  // The stream of a handle; null if there is none.
  Stream* find(cudaStream_t handle, int current_device) {
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return default_streams_[current_device];
    Lock lock(mutex_);
    auto* stream = reinterpret_cast<Stream*>(handle);
    return streams_.count(stream) ? stream : nullptr;
  }

  void wait(int device) {
    std::vector<Stream*> waiting;
    {
      Lock lock(mutex_);
      for (Stream* stream : streams_)
        if (stream->device == device) waiting.push_back(stream);
    }
    for (Stream* stream : waiting) stream->wait();
  }

  // Allocates memory with old contents; null if the device has no room.
  void* allocate(size_t num_bytes, int device) {
    Lock lock(mutex_);
    if (device >= 0 && used_[device] + num_bytes > memory) return nullptr;
    void* start = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(start, 0xAB, num_bytes);
    if (device >= 0) used_[device] += num_bytes;
    pieces_[reinterpret_cast<uintptr_t>(start)] = {num_bytes, device};
    return start;
  }

  // Frees memory. An access to it afterwards ends the process.
  bool free(void* start) {
    Lock lock(mutex_);
    auto found = pieces_.find(reinterpret_cast<uintptr_t>(start));
    if (found == pieces_.end()) return false;
    const Piece piece = found->second;
    if (piece.device >= 0) used_[piece.device] -= piece.num_bytes;
    pieces_.erase(found);
    munmap(start, piece.num_bytes);
    return true;
  }

  void lock_pages(void* start, size_t num_bytes) {
    Lock lock(mutex_);
    pieces_[reinterpret_cast<uintptr_t>(start)] = {num_bytes, -1};
  }

  void unlock_pages(void* start) {
    Lock lock(mutex_);
    pieces_.erase(reinterpret_cast<uintptr_t>(start));
  }

  // Whether an address is in allocated memory, and in which.
  bool find_piece(const void* address, Piece* piece) {
    Lock lock(mutex_);
    auto next = pieces_.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (next == pieces_.begin()) return false;
    --next;
    *piece = next->second;
    return reinterpret_cast<uintptr_t>(address) < next->first + piece->num_bytes;
  }

  bool is_pageable(const void* address) {
    Piece piece;
    return !find_piece(address, &piece);
  }

  size_t free_bytes(int device) {
    Lock lock(mutex_);
    return memory - used_[device];
  }

  const pid_t owner;
  const int num_devices;
  const size_t memory;

 private:
  const long lateness_;
  std::mutex mutex_;
  std::set<Stream*> streams_;
  std::vector<Stream*> default_streams_;
  std::map<uintptr_t, Piece> pieces_;
  std::vector<size_t> used_;
};

Machine* begun = nullptr;

Machine& machine() {
  static Machine* made = begun = new Machine;
  return *made;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) { return last_error = error; }

// CUDA is of no use in a process that was forked from one which has used it.
bool is_lost() { return begun != nullptr && begun->owner != getpid(); }

// Runs `call` on a stream, or reports why it cannot.
template <typename Call>
cudaError_t on_stream(cudaStream_t handle, Call call) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  Stream* stream = machine().find(handle, current_device);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return call(*stream);
}

cudaError_t queue(cudaStream_t handle, std::function<void()> work) {
  return on_stream(handle, [&](Stream& stream) {
    stream.queue(std::move(work));
    return cudaSuccess;
  });
}

// A copy from or to pageable memory is over when the call returns, as its source may go.
cudaError_t copy(void* target, const void* source, size_t num_bytes, cudaStream_t handle) {
  return on_stream(handle, [&](Stream& stream) {
    stream.queue([=] { std::memcpy(target, source, num_bytes); });
    if (machine().is_pageable(source) || machine().is_pageable(target)) stream.wait();
    return cudaSuccess;
  });
}

// A kernel needs a stream of the current device, and does nothing.
cudaError_t launch(cudaStream_t handle) {
  return on_stream(handle, [](Stream& stream) {
    if (stream.device != current_device) return failed(cudaErrorInvalidResourceHandle);
    stream.queue([] {});
    return cudaSuccess;
  });
}

cudaError_t new_stream(cudaStream_t* handle, unsigned flags) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  // A blocking stream would wait for the default stream, and the default stream for it.
  if (flags != cudaStreamNonBlocking) return failed(cudaErrorNotSupported);
  *handle = reinterpret_cast<cudaStream_t>(machine().add(current_device));
  return cudaSuccess;
}

cudaError_t release(void* start) {
  if (start == nullptr) return cudaSuccess;
  if (is_lost()) return failed(cudaErrorInitializationError);
  Piece piece;
  if (!machine().find_piece(start, &piece)) return failed(cudaErrorInvalidValue);
  machine().wait(piece.device >= 0 ? piece.device : current_device);
  return machine().free(start) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

}  // namespace

// Devices.

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().num_devices;
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  if (device < 0 || device >= machine().num_devices) return failed(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (device < 0 || device >= machine().num_devices) return failed(cudaErrorInvalidDevice);
  std::memset(found, 0, sizeof *found);
  std::snprintf(found->name, sizeof found->name, "Pretend GPU");
  found->totalGlobalMem = machine().memory;
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 0x7fffffff;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->sharedMemPerBlock = 49152;
  found->regsPerBlock = 65536;
  found->textureAlignment = 512;
  found->unifiedAddressing = 1;
  found->concurrentKernels = 1;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSynchronize() {
  if (is_lost()) return failed(cudaErrorInitializationError);
  machine().wait(current_device);
  return cudaSuccess;
}

// Errors.

EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }

EXPORT const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorPretended";
}

EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    default: return "an error of the pretend GPU";
  }
}

// Memory.

EXPORT cudaError_t cudaMalloc(void** start, size_t num_bytes) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  *start = machine().allocate(num_bytes, current_device);
  return *start ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaFree(void* start) { return release(start); }

EXPORT cudaError_t cudaHostAlloc(void** start, size_t num_bytes, unsigned) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  *start = machine().allocate(num_bytes, -1);
  return cudaSuccess;
}

EXPORT cudaError_t cudaMallocHost(void** start, size_t num_bytes) {
  return cudaHostAlloc(start, num_bytes, 0);
}

EXPORT cudaError_t cudaFreeHost(void* start) { return release(start); }

EXPORT cudaError_t cudaHostRegister(void* start, size_t num_bytes, unsigned) {
  machine().lock_pages(start, num_bytes);
  return cudaSuccess;
}

EXPORT cudaError_t cudaHostUnregister(void* start) {
  machine().unlock_pages(start);
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = machine().free_bytes(current_device);
  *total = machine().memory;
  return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  std::memset(found, 0, sizeof *found);
  found->type = cudaMemoryTypeUnregistered;
  Piece piece;
  if (is_lost() || !machine().find_piece(address, &piece)) return cudaSuccess;
  found->type = piece.device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  found->device = piece.device >= 0 ? piece.device : current_device;
  found->devicePointer = const_cast<void*>(address);
  if (piece.device < 0) found->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

// Copies.

EXPORT cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t num_bytes,
                                   cudaMemcpyKind, cudaStream_t stream) {
  return copy(target, source, num_bytes, stream);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int,
                                       size_t num_bytes, cudaStream_t stream) {
  return copy(target, source, num_bytes, stream);
}

EXPORT cudaError_t cudaMemcpy(void* target, const void* source, size_t num_bytes,
                              cudaMemcpyKind) {
  const cudaError_t error = copy(target, source, num_bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

EXPORT cudaError_t cudaMemsetAsync(void* target, int value, size_t num_bytes,
                                   cudaStream_t stream) {
  return queue(stream, [=] { std::memset(target, value, num_bytes); });
}

EXPORT cudaError_t cudaMemset(void* target, int value, size_t num_bytes) {
  return cudaMemsetAsync(target, value, num_bytes, nullptr);
}

// Streams.

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return new_stream(stream, flags);
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return new_stream(stream, flags);
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return on_stream(handle, [](Stream& stream) {
    stream.wait();
    return cudaSuccess;
  });
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return on_stream(handle, [](Stream& stream) {
    return stream.is_idle() ? cudaSuccess : failed(cudaErrorNotReady);
  });
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return queue(stream, [point = event_of(event).point()] { point->wait(); });
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return queue(stream, [=] { function(data); });
}

// No graph is ever captured; each thread has its mode.

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t*,
                                            const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                            size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode present = cudaStreamCaptureModeGlobal;
  std::swap(*mode, present);
  return cudaSuccess;
}

// Events.

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (is_lost()) return failed(cudaErrorInitializationError);
  *event = reinterpret_cast<cudaEvent_t>(new Event(current_device));
  return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return on_stream(stream_handle, [=](Stream& stream) {
    Event& event = event_of(handle);
    if (stream.device != event.device) return failed(cudaErrorInvalidResourceHandle);
    auto point = std::make_shared<Point>(false);
    {
      Lock lock(event.mutex);
      event.last = point;
    }
    stream.queue([point] { point->reach(); });
    return cudaSuccess;
  });
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event_of(event).point()->is_reached() ? cudaSuccess : failed(cudaErrorNotReady);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event_of(event).point()->wait();
  return cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

// Kernels.

EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t,
                                    cudaStream_t stream) {
  return launch(stream);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return launch(config->stream);
}

EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  std::memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                 size_t) {
  *blocks = 2;
  return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// The driver, driver.c.

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, name) : nullptr;
  if (*function == nullptr && driver) *function = dlsym(driver, "pretend_gpu_has_no_such_call");
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
