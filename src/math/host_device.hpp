// Marks the formulas of this room for both sides of a CUDA compile; nothing elsewhere.
#pragma once

#if defined(__CUDACC__)
#define REPLAYSSM_HOST_DEVICE __host__ __device__
#else
#define REPLAYSSM_HOST_DEVICE
#endif
