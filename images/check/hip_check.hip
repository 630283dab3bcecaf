// hip-check: runs a kernel on every GPU and compares its result. Compiled in the build for the stack's targets: that
// compiler, device library and runtime fit together is proved there; that they fit the GPU, where there is one.
// Ends with 0 (right on all GPUs), 1 (wrong, or an error of HIP) or 3 (no GPU).
#include <cmath>
#include <cstdio>
#include <cstring>
#include <hip/hip_runtime.h>
#include <vector>

__global__ void sines(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sinf(in[i]) + 1.0f; // sinf is the device library's
}

static bool good(hipError_t error, const char *what) {
    if (error != hipSuccess) std::printf("%s: %s\n", what, hipGetErrorString(error));
    return error == hipSuccess;
}

static bool right_on(int device) {
    const int n = 1 << 20;
    std::vector<float> in(n), out(n, 0.0f);
    for (int i = 0; i < n; i++) in[i] = float(i % 1000) / 100.0f;
    float *from = nullptr, *to = nullptr;
    hipDeviceProp_t properties;
    if (!good(hipSetDevice(device), "hipSetDevice") || !good(hipGetDeviceProperties(&properties, device), "properties") ||
        !good(hipMalloc(&from, n * sizeof(float)), "hipMalloc") || !good(hipMalloc(&to, n * sizeof(float)), "hipMalloc") ||
        !good(hipMemcpy(from, in.data(), n * sizeof(float), hipMemcpyHostToDevice), "copy to the GPU"))
        return false;
    sines<<<(n + 255) / 256, 256>>>(from, to, n);
    if (!good(hipGetLastError(), "kernel") ||
        !good(hipMemcpy(out.data(), to, n * sizeof(float), hipMemcpyDeviceToHost), "copy from the GPU"))
        return false;
    for (int i = 0; i < n; i++)
        if (!(std::fabs(out[i] - (std::sin(in[i]) + 1.0f)) <= 1e-4f)) { // also where it is no number
            std::printf("GPU %d (%s): element %d is %g\n", device, properties.gcnArchName, i, out[i]);
            return false;
        }
    std::printf("GPU %d (%s): the kernel's result is right\n", device, properties.gcnArchName);
    return true;
}

int main(int count, char **arguments) {
    if (count > 1 && !std::strcmp(arguments[1], "--version")) {
        std::printf("%s\n", HIPCC_VERSION);
        return 0;
    }
    int devices = 0;
    hipError_t error = hipGetDeviceCount(&devices);
    if (error == hipErrorNoDevice || (error == hipSuccess && devices == 0)) {
        std::printf("no GPU here\n");
        return 3;
    }
    bool all = good(error, "hipGetDeviceCount");
    for (int device = 0; device < devices; device++) all = right_on(device) && all;
    return all ? 0 : 1;
}
