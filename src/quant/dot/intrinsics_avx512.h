// The intrinsics, for files that are compiled for AVX-512.
#pragma once

// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a mistake.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
